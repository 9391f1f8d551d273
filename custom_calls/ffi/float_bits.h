// Scalar conversions between float32 and the narrow formats, to the nearest, ties to even. Without branches, so that loops
// over them vectorise. In an unnamed namespace: the header is compiled for several instruction sets.
#pragma once
#include <cstdint>
#include <cstring>

namespace onecat {
namespace {

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float f32_of_bf16(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }

inline float f32_of_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13 | (magnitude > 0x7c00) << 22);
  if (magnitude >= 0x0400) return float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

inline float f32_of_e5m2(uint8_t bits) { return f32_of_f16(static_cast<uint16_t>(bits) << 8); }

// E4M3 is float16 but for the exponent's offset of 8 and the code of NaN.
inline uint16_t f16_of_e4m3(uint8_t bits) {
  const unsigned magnitude = bits & 0x7f;
  return static_cast<uint16_t>((bits & 0x80) << 8 | (magnitude == 0x7f ? 0x7f00 : magnitude << 7));
}

inline float f32_of_e4m3(uint8_t bits) { return f32_of_f16(f16_of_e4m3(bits)) * 256.0f; }

inline uint16_t bf16_of_f32(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const uint32_t nan = (bits >> 16 & 0x8000) | 0x7fc0;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

// Magnitude bits of a finite |value| in a format with `kMantissa` bits and exponent offset `kBias`; a carry may run into
// the exponent, and one beyond the largest finite value gives the code after it.
template <int kMantissa, int kBias>
inline uint32_t round_magnitude(uint32_t bits) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  // Adding this number rounds to multiples of the smallest subnormal.
  constexpr uint32_t kRounder = static_cast<uint32_t>(128 - kBias + kShift) << 23;
  const uint32_t normal = ((bits + (1u << (kShift - 1)) - 1 + (bits >> kShift & 1)) >> kShift) -
                          (static_cast<uint32_t>(127 - kBias) << kMantissa);
  const uint32_t subnormal = bits_of_float(float_of_bits(bits) + float_of_bits(kRounder)) - kRounder;
  return bits >= kSmallestNormal ? normal : subnormal;
}

inline uint16_t f16_of_f32(float value) {
  const uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  const uint32_t finite = round_magnitude<10, 15>(magnitude);
  const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x3ff) : 0x7c00;
  return static_cast<uint16_t>(sign | (magnitude >= 0x47800000 ? large : finite));
}

// Values beyond the largest finite one give it, infinities too.
template <int kMantissa, int kBias>
inline uint8_t f8_of_f32(float value, float limit, uint32_t nan) {
  const uint32_t bits = bits_of_float(value), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  const uint32_t most = bits_of_float(limit);
  const uint32_t code = round_magnitude<kMantissa, kBias>(magnitude < most ? magnitude : most);
  return static_cast<uint8_t>(sign | (magnitude > 0x7f800000 ? nan : code));
}

inline uint8_t e4m3_of_f32(float value) { return f8_of_f32<3, 7>(value, 448.0f, 0x7f); }
inline uint8_t e5m2_of_f32(float value) { return f8_of_f32<2, 15>(value, 57344.0f, 0x7e); }

}  // namespace
}  // namespace onecat
