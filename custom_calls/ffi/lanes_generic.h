// Sixteen float32 lanes for any processor: what lanes_avx2.h and lanes_avx512.h must equal bit by bit.
//
// fold<R> adds the lanes of R values in halves: 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half. `less` picks per lane
// a < b ? a : b and `more` a > b ? a : b, so that a NaN in b stays. kRows and kSums say how many rows and running sums the
// registers hold.
#pragma once
#include <cmath>

#include "ffi/float_bits.h"

namespace onecat {
namespace {

constexpr int kLanes = 16;

struct GenericLanes {
  float v[kLanes];

  static constexpr int kRows = 1;
  static constexpr int kSums = 2;

  template <class F>
  static GenericLanes each(F f) {
    GenericLanes out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
    return out;
  }
  static GenericLanes all(float x) {
    return each([x](int) { return x; });
  }
  static GenericLanes load(const float* p) {
    return each([p](int i) { return p[i]; });
  }
  static GenericLanes load_f16(const uint16_t* p) {
    return each([p](int i) { return f32_of_f16(p[i]); });
  }
  static GenericLanes load_bf16(const uint16_t* p) {
    return each([p](int i) { return f32_of_bf16(p[i]); });
  }
  static GenericLanes load_e4m3(const uint8_t* p) {
    return each([p](int i) { return f32_of_e4m3(p[i]); });
  }
  static GenericLanes load_e5m2(const uint8_t* p) {
    return each([p](int i) { return f32_of_e5m2(p[i]); });
  }
  void store(float* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = v[i];
  }
  void store_f16(uint16_t* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = f16_of_f32(v[i]);
  }
  void store_bf16(uint16_t* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = bf16_of_f32(v[i]);
  }
  static GenericLanes fma(const GenericLanes& a, const GenericLanes& b, const GenericLanes& c) {
    return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static GenericLanes add(const GenericLanes& a, const GenericLanes& b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static GenericLanes sub(const GenericLanes& a, const GenericLanes& b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static GenericLanes mul(const GenericLanes& a, const GenericLanes& b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static GenericLanes div(const GenericLanes& a, const GenericLanes& b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
  }
  static GenericLanes less(const GenericLanes& a, const GenericLanes& b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static GenericLanes more(const GenericLanes& a, const GenericLanes& b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  // a times two to the power of the integer in the low bits of n's pattern.
  static GenericLanes add_exponent(const GenericLanes& a, const GenericLanes& n) {
    return each([&](int i) { return float_of_bits(bits_of_float(a.v[i]) + (bits_of_float(n.v[i]) << 23)); });
  }
  template <int R>
  static void fold(const GenericLanes* sums, float* out) {
    for (int r = 0; r < R; ++r) {
      GenericLanes s = sums[r];
      for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) s.v[i] += s.v[i + half];
      out[r] = s.v[0];
    }
  }
};

}  // namespace
}  // namespace onecat
