// Sixteen lanes as two AVX2 registers; see lanes_generic.h.
#pragma once
#include <immintrin.h>

#include "ffi/float_bits.h"

namespace onecat {
namespace {

constexpr int kLanes = 16;

struct Avx2Lanes {
  __m256 lo, hi;

  static constexpr int kRows = 2;
  static constexpr int kSums = 4;

  static inline Avx2Lanes all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static inline Avx2Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static inline Avx2Lanes load_f16(const uint16_t* p) { return of_f16(eight(p), eight(p + 8)); }
  static inline Avx2Lanes load_bf16(const uint16_t* p) { return {widen(eight(p)), widen(eight(p + 8))}; }
  static inline Avx2Lanes load_e4m3(const uint8_t* p) {
    const Avx2Lanes small = of_f16(f16_of_e4m3(bytes(p)), f16_of_e4m3(bytes(p + 8)));
    return mul(small, all(256.0f));
  }
  static inline Avx2Lanes load_e5m2(const uint8_t* p) {
    return of_f16(_mm_slli_epi16(bytes(p), 8), _mm_slli_epi16(bytes(p + 8), 8));
  }
  inline void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  inline void store_f16(uint16_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(hi, _MM_FROUND_TO_NEAREST_INT));
  }
  inline void store_bf16(uint16_t* p) const {
    alignas(32) float values[kLanes];
    store(values);
    for (int i = 0; i < kLanes; ++i) p[i] = bf16_of_f32(values[i]);
  }
  static inline Avx2Lanes fma(const Avx2Lanes& a, const Avx2Lanes& b, const Avx2Lanes& c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static inline Avx2Lanes add(const Avx2Lanes& a, const Avx2Lanes& b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  static inline Avx2Lanes sub(const Avx2Lanes& a, const Avx2Lanes& b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  static inline Avx2Lanes mul(const Avx2Lanes& a, const Avx2Lanes& b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  static inline Avx2Lanes div(const Avx2Lanes& a, const Avx2Lanes& b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
  static inline Avx2Lanes less(const Avx2Lanes& a, const Avx2Lanes& b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
  }
  static inline Avx2Lanes more(const Avx2Lanes& a, const Avx2Lanes& b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
  }
  static inline Avx2Lanes add_exponent(const Avx2Lanes& a, const Avx2Lanes& n) {
    return {raise(a.lo, n.lo), raise(a.hi, n.hi)};
  }
  template <int R>
  static inline void fold(const Avx2Lanes* sums, float* out) {
    for (int r = 0; r < R; ++r) {
      const __m256 eight = _mm256_add_ps(sums[r].lo, sums[r].hi);
      const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
      const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
      out[r] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
  }

 private:
  static inline __m128i eight(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static inline __m128i bytes(const uint8_t* p) {
    return _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static inline Avx2Lanes of_f16(__m128i low, __m128i high) { return {_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)}; }
  static inline __m256 widen(__m128i bf16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
  }
  static inline __m128i f16_of_e4m3(__m128i codes) {
    const __m128i magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
    const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x4080));
    const __m128i value = _mm_xor_si128(_mm_slli_epi16(magnitude, 7), nan);  // 0x3f80 becomes 0x7f00
    return _mm_or_si128(value, _mm_slli_epi16(_mm_and_si128(codes, _mm_set1_epi16(0x80)), 8));
  }
  static inline __m256 raise(__m256 a, __m256 n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
  }
};

}  // namespace
}  // namespace onecat
