// Functions over sixteen lanes; the same operations, hence the same bits, on every instruction set.
#pragma once
#include "ffi/storage.h"

namespace onecat {
namespace {

// e^x within 2 ulp for x in -87 .. 88; beyond, its value there. NaN gives NaN.
//
// n = round(x / ln 2) by adding 1.5 * 2^23, whose low bits then hold n; r = x - n ln 2 in two steps; e^r by a polynomial.
template <class V>
inline V exp_lanes(const V& argument) {
  const V rounder = V::all(12582912.0f);
  const V x = V::less(V::all(88.0f), V::more(V::all(-87.0f), argument));
  const V shifted = V::fma(x, V::all(1.44269504f), rounder), n = V::sub(shifted, rounder);
  V r = V::fma(n, V::all(-0.693359375f), x);
  r = V::fma(n, V::all(2.12194440e-4f), r);
  V p = V::all(1.9875691500e-4f);
  p = V::fma(p, r, V::all(1.3981999507e-3f));
  p = V::fma(p, r, V::all(8.3334519073e-3f));
  p = V::fma(p, r, V::all(4.1665795894e-2f));
  p = V::fma(p, r, V::all(1.6666665459e-1f));
  p = V::fma(p, r, V::all(5.0000001201e-1f));
  p = V::add(V::fma(p, V::mul(r, r), r), V::all(1.0f));
  return V::add(V::add_exponent(p, shifted), V::sub(x, x));  // the last term is zero or NaN
}

// x / (1 + e^-x)
template <class V>
inline V silu_lanes(const V& x) {
  return V::div(x, V::add(V::all(1.0f), exp_lanes(V::sub(V::all(0.0f), x))));
}

// Sixteen values from element `at` of an array.
template <class V, Storage T>
inline V load_as(const void* data, int64_t at) {
  if constexpr (T == Storage::kF32) return V::load(static_cast<const float*>(data) + at);
  if constexpr (T == Storage::kF16) return V::load_f16(static_cast<const uint16_t*>(data) + at);
  if constexpr (T == Storage::kBF16) return V::load_bf16(static_cast<const uint16_t*>(data) + at);
  if constexpr (T == Storage::kE4M3) return V::load_e4m3(static_cast<const uint8_t*>(data) + at);
  if constexpr (T == Storage::kE5M2) return V::load_e5m2(static_cast<const uint8_t*>(data) + at);
}

// Sixteen values to float32, float16 or bfloat16 memory.
template <class V, Storage T>
inline void store_as(const V& x, void* data) {
  if constexpr (T == Storage::kF32) x.store(static_cast<float*>(data));
  if constexpr (T == Storage::kF16) x.store_f16(static_cast<uint16_t*>(data));
  if constexpr (T == Storage::kBF16) x.store_bf16(static_cast<uint16_t*>(data));
}

// What store_as and load_as make of x.
template <class V, Storage T>
inline V round_to(const V& x) {
  if constexpr (T == Storage::kF32) return x;
  uint16_t narrow[kLanes];
  store_as<V, T>(x, narrow);
  return load_as<V, T>(narrow, 0);
}

// The inner product of two rows of `count` (a multiple of 16) values.
template <class V>
inline float dot_lanes(const float* a, const float* b, int64_t count) {
  V sum = V::all(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) sum = V::fma(V::load(a + i), V::load(b + i), sum);
  float out;
  V::template fold<1>(&sum, &out);
  return out;
}

}  // namespace
}  // namespace onecat
