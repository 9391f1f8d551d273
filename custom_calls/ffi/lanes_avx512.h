// Sixteen lanes as one AVX-512 register; see lanes_generic.h.
#pragma once
#include <immintrin.h>

#include "ffi/float_bits.h"

namespace onecat {
namespace {

constexpr int kLanes = 16;

struct Avx512Lanes {
  __m512 v;

  static constexpr int kRows = 4;
  static constexpr int kSums = 16;

  static inline Avx512Lanes all(float x) { return {_mm512_set1_ps(x)}; }
  static inline Avx512Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static inline Avx512Lanes load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(words(p))}; }
  static inline Avx512Lanes load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words(p)), 16))};
  }
  static inline Avx512Lanes load_e4m3(const uint8_t* p) {
    const __m256i codes = bytes(p), magnitude = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
    const __m256i value = _mm256_mask_mov_epi16(_mm256_slli_epi16(magnitude, 7), nan, _mm256_set1_epi16(0x7f00));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)), 8);
    return {_mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(value, sign)), _mm512_set1_ps(256.0f))};
  }
  static inline Avx512Lanes load_e5m2(const uint8_t* p) { return {_mm512_cvtph_ps(_mm256_slli_epi16(bytes(p), 8))}; }
  inline void store(float* p) const { _mm512_storeu_ps(p, v); }
  inline void store_f16(uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  inline void store_bf16(uint16_t* p) const {
    alignas(64) float values[kLanes];
    store(values);
    for (int i = 0; i < kLanes; ++i) p[i] = bf16_of_f32(values[i]);
  }
  static inline Avx512Lanes fma(const Avx512Lanes& a, const Avx512Lanes& b, const Avx512Lanes& c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  static inline Avx512Lanes add(const Avx512Lanes& a, const Avx512Lanes& b) { return {_mm512_add_ps(a.v, b.v)}; }
  static inline Avx512Lanes sub(const Avx512Lanes& a, const Avx512Lanes& b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static inline Avx512Lanes mul(const Avx512Lanes& a, const Avx512Lanes& b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static inline Avx512Lanes div(const Avx512Lanes& a, const Avx512Lanes& b) { return {_mm512_div_ps(a.v, b.v)}; }
  static inline Avx512Lanes less(const Avx512Lanes& a, const Avx512Lanes& b) { return {_mm512_min_ps(a.v, b.v)}; }
  static inline Avx512Lanes more(const Avx512Lanes& a, const Avx512Lanes& b) { return {_mm512_max_ps(a.v, b.v)}; }
  static inline Avx512Lanes add_exponent(const Avx512Lanes& a, const Avx512Lanes& n) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(n.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), exponent))};
  }
  template <int R>
  static inline void fold(const Avx512Lanes* sums, float* out) {
    if constexpr (R % 4 == 0) {
      for (int r = 0; r < R; r += 4) fold4(sums + r, out + r);
    } else {
      for (int r = 0; r < R; ++r) out[r] = fold1(sums[r].v);
    }
  }

 private:
  static inline __m256i words(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static inline __m256i bytes(const uint8_t* p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static inline float fold1(__m512 v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  // Four registers side by side, with the additions of fold1.
  static inline void fold4(const Avx512Lanes* s, float* out) {
    const __m512 ab = halves(s[0].v, s[1].v), cd = halves(s[2].v, s[3].v);
    const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0xee));
    const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0x55));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
  }
  // 16 lanes of two registers -> 8 and 8.
  static inline __m512 halves(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
};

}  // namespace
}  // namespace onecat
