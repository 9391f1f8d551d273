// A few neighbouring values at a time, between memory and float32, and their place in the cache. Rounding is to nearest even;
// float8 saturates.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "paged_attention/write_args.h"

namespace onecat::paged_attention {

using u32 = unsigned int;

template <class T, int kCount>
struct alignas(sizeof(T) * kCount > 16 ? 16 : sizeof(T) * kCount) Words {
  T x[kCount];
};

template <class T, int kCount>
__device__ __forceinline__ void load(const void* from, size_t at, float (&values)[kCount]) {
  const Words<T, kCount> words = reinterpret_cast<const Words<T, kCount>*>(from)[at];
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = static_cast<float>(words.x[i]);
}

template <int kCount>
__device__ __forceinline__ void load_as(Element type, const void* from, size_t at, float (&values)[kCount]) {
  if (type == kElementF16) return load<__half>(from, at, values);
  if (type == kElementBF16) return load<__nv_bfloat16>(from, at, values);
  load<float>(from, at, values);
}

// float8 with kMantissa bits of mantissa: its bits are those of the float32 from there up, counted from the smallest normal
// exponent; below, multiples of 2^kLeast.
template <int kMantissa, int kBias, int kLeast>
__device__ __forceinline__ unsigned char float8(float x, float largest, unsigned char nan) {
  const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  constexpr int kShift = 23 - kMantissa;
  if (magnitude > 0x7f800000u) return sign | nan;
  const float size = fminf(__uint_as_float(magnitude), largest);
  if (size < __uint_as_float((127 - kBias + 1) << 23)) return sign | __float2uint_rn(ldexpf(size, -kLeast));
  const u32 even = __float_as_uint(size) >> kShift & 1;
  return sign | (((__float_as_uint(size) + (1u << (kShift - 1)) - 1 + even) >> kShift) - ((127 - kBias) << kMantissa));
}

template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half narrow<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

struct E4M3 {
  unsigned char bits;
};
template <>
__device__ __forceinline__ E4M3 narrow<E4M3>(float x) {
  return {float8<3, 7, -9>(x, 448.0f, 0x7f)};
}
struct E5M2 {
  unsigned char bits;
};
template <>
__device__ __forceinline__ E5M2 narrow<E5M2>(float x) {
  return {float8<2, 15, -16>(x, 57344.0f, 0x7e)};
}

template <class T, int kCount>
__device__ __forceinline__ void store(void* to, size_t at, const float (&values)[kCount]) {
  Words<T, kCount> words;
#pragma unroll
  for (int i = 0; i < kCount; ++i) words.x[i] = narrow<T>(values[i]);
  reinterpret_cast<Words<T, kCount>*>(to)[at] = words;
}

// Group `at` of kCount values.
template <int kCount>
__device__ __forceinline__ void store_as(Element type, void* to, size_t at, const float (&values)[kCount]) {
  switch (type) {
    case kElementF32: return store<float>(to, at, values);
    case kElementF16: return store<__half>(to, at, values);
    case kElementBF16: return store<__nv_bfloat16>(to, at, values);
    case kElementE4M3: return store<E4M3>(to, at, values);
    case kElementE5M2: return store<E5M2>(to, at, values);
  }
}

// Token of the cache where token t of row b belongs; below 0 for none.
__device__ __forceinline__ long long place(const Places& a, int b, int t) {
  const int position = a.start[b] + t, width = a.table_pages * a.page_size;
  if (t >= a.count[b] || position < 0 || position >= width) return -1;
  const int page = *a.first_page + a.table[(size_t)b * a.table_pages + position / a.page_size];
  return page < 0 || page >= a.pages ? -1 : (long long)page * a.page_size + position % a.page_size;
}

}  // namespace onecat::paged_attention
