// Words of packed codes -> float16 operands, and the scales beside them. Bit orders: packing.py.
#pragma once
#include "linear/device.cuh"

namespace onecat::linear {

// ---- NVFP4

// One packed word -> four half2 of code value * 2^-14.
__device__ __forceinline__ void decode_e2m1(u32 w, u32 (&out)[4]) {
  out[0] = w & 0x8e008e00u;
  out[1] = ((w >> 3) & 0x0e000e00u) | ((w << 7) & 0x80008000u);
  out[2] = (w << 8) & 0x8e008e00u;
  out[3] = ((w << 5) & 0x0e000e00u) | ((w << 15) & 0x80008000u);
}

// E4M3 byte i of w, not negative -> half2 of its value * 2^6. The product with a code is then value * 2^-8, exact for every
// pair, subnormals included; the epilogue multiplies by 2^8.
constexpr u32 kScaleUnit = 0x74007400u;  // half2 of 2^14: a byte's bits from bit 7 of a float16 on are its value * 2^-8
__device__ __forceinline__ u32 scale_pair(u32 w, int i) {
  return multiply2(__byte_perm(w, 0, i * 0x0101 | 4 << 4 | 4 << 12) << 7, kScaleUnit);
}

constexpr float kHalfUnit = 256.0f;  // operands of NVFP4 and FP8 are values * 2^-8

// Of row n; a block holds `block_rows` rows.
__device__ __forceinline__ float stored_row_scale(const LinearArgs& a, int layer, int n, int block_rows) {
  return a.rows[static_cast<size_t>(layer) * a.blocks * block_rows + n];
}

// ---- FP8

// One packed word -> two half2 of code value * 2^-8: exact, for exponents of 4 bits are exponents of 5 bits with another bias,
// and codes below E4M3's smallest normal number, 2^-6, are patterns below float16's, 2^-14.
__device__ __forceinline__ void decode_e4m3(u32 w, u32& a, u32& b) {
  a = w & 0xbf80bf80u;
  b = ((w << 7) & 0x3f803f80u) | ((w << 1) & 0x80008000u);
}

// ---- INT4

// 1024 + code and 64 + code are float16 patterns with the code in their low bits, or four bits higher; the difference with the
// same pattern of the zero point is an integer of at most 15, exact.
struct ZeroPair {
  u32 low, high;  // both halves 1024 + zero; both -(64 + zero)

  __device__ __forceinline__ explicit ZeroPair(u32 zero)
      : low((zero & 15) * 0x00010001u | 0x64006400u), high((zero & 15) * 0x00100010u | 0xd400d400u) {}
  // Codes in bits 3..0 of both halves.
  __device__ __forceinline__ u32 step_low(u32 w) const { return subtract2((w & 0x000f000fu) | 0x64006400u, low); }
  // Codes in bits 7..4, which a float16 of 1024 + 16 * code holds: a sixteenth of it is 64 + code.
  __device__ __forceinline__ u32 step_high(u32 w) const {
    return fma2((w & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, high);
  }
};

}  // namespace onecat::linear
