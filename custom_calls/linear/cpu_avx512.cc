// The CPU kernels on AVX-512: one register is 16 lanes, and one permutation looks 16 codes up.
#if defined(__x86_64__)
#include <immintrin.h>

#include "linear/cpu_body.h"

namespace onecat::linear {
namespace {

struct Avx512 {
  __m512 v;

  static constexpr int kDirectX = 8;
  static constexpr int kBlockX = 6;
  static constexpr int direct_rows(int m) { return m <= 3 ? 8 : m <= 6 ? 4 : 2; }
  static constexpr int kTileW = 4;

  static inline Avx512 zero() { return {_mm512_setzero_ps()}; }
  static inline Avx512 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static inline Avx512 load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static inline Avx512 load_bf16(const uint16_t* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  template <DenseType T>
  static inline Avx512 load_first(const void* data, int64_t at, int count) {
    const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
    if constexpr (T == DenseType::kF32) return {_mm512_maskz_loadu_ps(mask, static_cast<const float*>(data) + at)};
    const __m256i bits = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(data) + at);
    if constexpr (T == DenseType::kF16) return {_mm512_cvtph_ps(bits)};
    if constexpr (T == DenseType::kBF16) return widen(bits);
  }
  inline void store(float* p) const { _mm512_storeu_ps(p, v); }
  static inline Avx512 fma(const Avx512& a, const Avx512& b, const Avx512& c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static inline Avx512 times(const Avx512& a, float b) { return {_mm512_mul_ps(a.v, _mm512_set1_ps(b))}; }
  static inline float f16(uint16_t bits) { return _cvtsh_ss(bits); }
  static inline void decode(const uint8_t* codes, const float* first, const float* second, Avx512* out) {
    // The permutation reads the low four bits of each lane only.
    const __m512i lanes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    out[0].v = _mm512_permutexvar_ps(lanes, _mm512_load_ps(first));
    out[1].v = _mm512_permutexvar_ps(_mm512_srli_epi32(lanes, 4), _mm512_load_ps(second));
  }
  static inline void decode_e4m3(const uint8_t* codes, Avx512* out) {
    // Shifting the sign-extended code puts its sign into bits 15 and 14.
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512i halves = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<short>(0xbfff)));
    out[0].v = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    out[1].v = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
  }
  static inline void decode_int4(const uint8_t* codes, uint8_t zero, float scale, Avx512* out) {
    const __m512 table = _mm512_mul_ps(_mm512_loadu_ps(kSteps + 15 - (zero & 15)), _mm512_set1_ps(scale));
    // The permutation reads the low four bits of each lane only.
    const __m512i lanes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    out[0].v = _mm512_permutexvar_ps(lanes, table);
    out[1].v = _mm512_permutexvar_ps(_mm512_srli_epi32(lanes, 4), table);
  }
  template <int R>
  static inline void fold(const Avx512* sums, float* out) {
    if constexpr (R % 4 == 0) {
      for (int r = 0; r < R; r += 4) fold4(sums + r, out + r);
    } else {
      for (int r = 0; r < R; ++r) out[r] = fold1(sums[r].v);
    }
  }

 private:
  static inline float fold1(__m512 v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  // Four registers side by side, with the additions of fold1.
  static inline void fold4(const Avx512* s, float* out) {
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
  static inline Avx512 widen(__m256i bf16) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16))};
  }
};

}  // namespace

const Kernels kAvx512Kernels = {run_nvfp4<Avx512>, run_fp8<Avx512>, run_int4<Avx512>, run_dense<Avx512>};

}  // namespace onecat::linear
#endif
