// architectures: sm_70 sm_80 sm_90 compute_70
//
// New keys and values into their pages, 8 values per thread. Rounding is to nearest even; float8 saturates.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "paged_attention/write_args.h"

namespace onecat::paged_attention {

using u32 = unsigned int;

struct Values {
  float x[kWriteValues];
};

template <class T>
struct alignas(sizeof(T) * kWriteValues > 16 ? 16 : sizeof(T) * kWriteValues) Words {
  T x[kWriteValues];
};

template <class T>
__device__ __forceinline__ Values load(const void* from, size_t at) {
  const Words<T> words = reinterpret_cast<const Words<T>*>(from)[at];
  Values values;
#pragma unroll
  for (int i = 0; i < kWriteValues; ++i) values.x[i] = static_cast<float>(words.x[i]);
  return values;
}

__device__ __forceinline__ Values load_as(Element type, const void* from, size_t at) {
  if (type == kElementF16) return load<__half>(from, at);
  if (type == kElementBF16) return load<__nv_bfloat16>(from, at);
  return load<float>(from, at);
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

template <class T>
__device__ __forceinline__ void store(void* to, size_t at, const Values& values) {
  Words<T> words;
#pragma unroll
  for (int i = 0; i < kWriteValues; ++i) words.x[i] = narrow<T>(values.x[i]);
  reinterpret_cast<Words<T>*>(to)[at] = words;
}

__device__ __forceinline__ void store_as(Element type, void* to, size_t at, const Values& values) {
  switch (type) {
    case kElementF32: return store<float>(to, at, values);
    case kElementF16: return store<__half>(to, at, values);
    case kElementBF16: return store<__nv_bfloat16>(to, at, values);
    case kElementE4M3: return store<E4M3>(to, at, values);
    case kElementE5M2: return store<E5M2>(to, at, values);
  }
}

// Token of the cache where token t of row b belongs; below 0 for none.
__device__ __forceinline__ long long place(const WriteArgs& a, int b, int t) {
  const int position = a.start[b] + t, width = a.table_pages * a.page_size;
  if (t >= a.count[b] || position < 0 || position >= width) return -1;
  const int page = *a.first_page + a.table[(size_t)b * a.table_pages + position / a.page_size];
  return page < 0 || page >= a.pages ? -1 : (long long)page * a.page_size + position % a.page_size;
}

}  // namespace onecat::paged_attention

extern "C" __global__ void __launch_bounds__(256) kv_write(const __grid_constant__ onecat::paged_attention::WriteArgs a) {
  using namespace onecat::paged_attention;
  const int groups = a.values / kWriteValues;
  const long long id = (long long)blockIdx.x * kWriteThreads + threadIdx.x, token = id / groups;
  if (token >= (long long)a.batch * a.tokens) return;
  const long long to = place(a, static_cast<int>(token / a.tokens), static_cast<int>(token % a.tokens));
  if (to < 0) return;
  const void* from = blockIdx.y ? a.v : a.k;
  store_as(a.to, blockIdx.y ? a.v_pages : a.k_pages, to * groups + id % groups, load_as(a.from, from, id));
}
