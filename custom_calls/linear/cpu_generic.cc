// The CPU kernels for any processor: 16 lanes as an array, std::fma per lane.
#include <cmath>

#include "linear/cpu_body.h"

namespace onecat::linear {
namespace {

struct Generic {
  float v[kLanes];

  static constexpr int kDirectX = 2;
  static constexpr int kBlockX = 2;
  static constexpr int direct_rows(int) { return 1; }
  static constexpr int kTileW = 2;

  template <class F>
  static Generic each(F f) {
    Generic out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
    return out;
  }

  static Generic zero() {
    return each([](int) { return 0.0f; });
  }
  static Generic load(const float* p) {
    return each([p](int i) { return p[i]; });
  }
  static Generic load_f16(const uint16_t* p) {
    return each([p](int i) { return f32_of_f16(p[i]); });
  }
  static Generic load_bf16(const uint16_t* p) {
    return each([p](int i) { return f32_of_bf16(p[i]); });
  }
  template <DenseType T>
  static Generic load_first(const void* data, int64_t at, int count) {
    return each([=](int i) {
      if (i >= count) return 0.0f;
      if constexpr (T == DenseType::kF32) return static_cast<const float*>(data)[at + i];
      if constexpr (T == DenseType::kF16) return f32_of_f16(static_cast<const uint16_t*>(data)[at + i]);
      if constexpr (T == DenseType::kBF16) return f32_of_bf16(static_cast<const uint16_t*>(data)[at + i]);
    });
  }
  void store(float* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = v[i];
  }
  static Generic fma(const Generic& a, const Generic& b, const Generic& c) {
    return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static Generic times(const Generic& a, float b) {
    return each([&](int i) { return a.v[i] * b; });
  }
  static float f16(uint16_t bits) { return f32_of_f16(bits); }
  static void decode(const uint8_t* codes, const float* first, const float* second, Generic* out) {
    out[0] = each([=](int i) { return first[codes[i] & 15]; });
    out[1] = each([=](int i) { return second[codes[i] >> 4]; });
  }
  static void decode_e4m3(const uint8_t* codes, Generic* out) {
    for (int g = 0; g < 2; ++g) {
      out[g] = each([=](int i) {
        const uint8_t code = codes[g * kLanes + i];
        return f32_of_f16(static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7));
      });
    }
  }
  static void decode_int4(const uint8_t* codes, uint8_t zero, float scale, Generic* out) {
    const float* steps = kSteps + 15 - (zero & 15);
    out[0] = each([=](int i) { return steps[codes[i] & 15] * scale; });
    out[1] = each([=](int i) { return steps[codes[i] >> 4] * scale; });
  }
  template <int R>
  static void fold(const Generic* sums, float* out) {
    for (int r = 0; r < R; ++r) {
      Generic s = sums[r];
      for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) s.v[i] += s.v[i + half];
      out[r] = s.v[0];
    }
  }
};

}  // namespace

const Kernels kGenericKernels = {run_nvfp4<Generic>, run_fp8<Generic>, run_int4<Generic>, run_dense<Generic>};

}  // namespace onecat::linear
