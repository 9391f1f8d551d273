// The CPU kernels on AVX2 with FMA: two registers are the 16 lanes.
#if defined(__x86_64__)
#include <immintrin.h>

#include "linear/cpu_body.h"

namespace onecat::linear {
namespace {

struct Avx2 {
  __m256 lo, hi;

  static constexpr int kDirectX = 3;
  static constexpr int kBlockX = 3;
  static constexpr int direct_rows(int m) { return m == 1 ? 4 : m == 2 ? 2 : 1; }
  static constexpr int kTileW = 2;

  static inline Avx2 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static inline Avx2 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static inline Avx2 load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static inline Avx2 load_bf16(const uint16_t* p) { return {widen(p), widen(p + 8)}; }
  template <DenseType T>
  static inline Avx2 load_first(const void* data, int64_t at, int count) {
    alignas(32) float values[kLanes] = {};
    for (int i = 0; i < count; ++i) {
      if constexpr (T == DenseType::kF32) values[i] = static_cast<const float*>(data)[at + i];
      if constexpr (T == DenseType::kF16) values[i] = f32_of_f16(static_cast<const uint16_t*>(data)[at + i]);
      if constexpr (T == DenseType::kBF16) values[i] = f32_of_bf16(static_cast<const uint16_t*>(data)[at + i]);
    }
    return load(values);
  }
  inline void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  static inline Avx2 fma(const Avx2& a, const Avx2& b, const Avx2& c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static inline Avx2 times(const Avx2& a, float b) {
    const __m256 all = _mm256_set1_ps(b);
    return {_mm256_mul_ps(a.lo, all), _mm256_mul_ps(a.hi, all)};
  }
  static inline float f16(uint16_t bits) { return _cvtsh_ss(bits); }
  static inline void decode(const uint8_t* codes, const float* first, const float* second, Avx2* out) {
    const __m256i lo = bytes(codes), hi = bytes(codes + 8);
    const __m256 low = _mm256_load_ps(first), high = _mm256_load_ps(second);
    out[0] = {look_up(lo, low), look_up(hi, low)};
    out[1] = {look_up(_mm256_srli_epi32(lo, 4), high), look_up(_mm256_srli_epi32(hi, 4), high)};
  }
  static inline void decode_e4m3(const uint8_t* codes, Avx2* out) {
    for (int g = 0; g < 2; ++g) out[g] = {e4m3(codes + g * kLanes), e4m3(codes + g * kLanes + 8)};
  }
  static inline void decode_int4(const uint8_t* codes, uint8_t zero, float scale, Avx2* out) {
    const __m256i first = bytes(codes), second = bytes(codes + 8), low = _mm256_set1_epi32(15);
    const __m256 z = _mm256_set1_ps(kSteps[15 + (zero & 15)]), s = _mm256_set1_ps(scale);
    out[0] = {step(_mm256_and_si256(first, low), z, s), step(_mm256_and_si256(second, low), z, s)};
    out[1] = {step(_mm256_srli_epi32(first, 4), z, s), step(_mm256_srli_epi32(second, 4), z, s)};
  }
  template <int R>
  static inline void fold(const Avx2* sums, float* out) {
    for (int r = 0; r < R; ++r) {
      const __m256 eight = _mm256_add_ps(sums[r].lo, sums[r].hi);
      const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
      const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
      out[r] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
  }

 private:
  static inline __m256i bytes(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  // The permutation reads the low three bits of a lane, the magnitude; bit 3 is the sign.
  static inline __m256 look_up(__m256i codes, __m256 magnitudes) {
    const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, codes);
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(INT32_MIN));
    return _mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign));
  }
  // Eight E4M3 codes -> value * 2^-8. Shifting the sign-extended code puts its sign into bits 15 and 14.
  static inline __m256 e4m3(const uint8_t* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<short>(0xbfff))));
  }
  static inline __m256 step(__m256i codes, __m256 zero, __m256 scale) {
    return _mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(codes), zero), scale);
  }
  static inline __m256 widen(const uint16_t* p) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  }
};

}  // namespace

const Kernels kAvx2Kernels = {run_nvfp4<Avx2>, run_fp8<Avx2>, run_int4<Avx2>, run_dense<Avx2>};

}  // namespace onecat::linear
#endif
