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
__device__ __forceinline__ u32 scale_pair(u32 w, int i) {
  return multiply2(__byte_perm(w, 0, i * 0x0101 | 4 << 4 | 4 << 12) << 7, 0x74007400u);
}

constexpr float kHalfUnit = 256.0f;  // operands of NVFP4 and FP8 are values * 2^-8
constexpr int kUnitScales = 128;     // bytes of a block's unit

struct Nvfp4Reader {
  const unsigned char* scales;

  template <class Lane>
  __device__ __forceinline__ Nvfp4Reader(const LinearArgs& a, int layer, const Lane& at)
      : scales(static_cast<const unsigned char*>(a.scales) + block_of(a, layer) * a.units * kUnitScales + at.codes * 4) {}
  __device__ __forceinline__ void load(int u, u32& out) const { out = load_scales(scales + u * kUnitScales); }
};

__device__ __forceinline__ float stored_row_scale(const LinearArgs& a, int layer, int n) {
  return a.rows[static_cast<size_t>(layer) * a.blocks * kBlockRows + n] * kHalfUnit;
}

// ---- FP8

// One packed word -> two half2 of code value * 2^-8: exact, for exponents of 4 bits are exponents of 5 bits with another bias,
// and codes below E4M3's smallest normal number, 2^-6, are patterns below float16's, 2^-14.
__device__ __forceinline__ void decode_e4m3(u32 w, u32& a, u32& b) {
  a = w & 0xbf80bf80u;
  b = ((w << 7) & 0x3f803f80u) | ((w << 1) & 0x80008000u);
}

// ---- scales of groups of k: four consecutive ones, those of the rows whose sums the lane holds

struct FourFloats {
  uint4 raw;

  // `place` counts scales.
  __device__ __forceinline__ void load(const void* scales, size_t place) {
    raw = load16(static_cast<const float*>(scales) + place);
  }
  __device__ __forceinline__ float get(int i, int) const { return __uint_as_float(component(raw, i)); }
};

// float16 or bfloat16, as `type` says when they are used.
struct FourHalves {
  uint2 raw;

  __device__ __forceinline__ void load(const void* scales, size_t place) {
    raw = load8(static_cast<const unsigned short*>(scales) + place);
  }
  __device__ __forceinline__ float get(int i, int type) const {
    const u32 pair = i < 2 ? raw.x : raw.y;
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    const float bf16 = __uint_as_float(i & 1 ? pair & 0xffff0000u : pair << 16);
    return type == kScaleBF16 ? bf16 : i & 1 ? both.y : both.x;
  }
};

// FP8 with scales of rows: they wait for the epilogue, beside the codes lies nothing.
struct ScalesOfRows {
  static constexpr int kSpans = 0;
  struct Beside {};
  struct Reader {
    template <class Lane>
    __device__ __forceinline__ Reader(const LinearArgs&, int, const Lane&) {}
    __device__ __forceinline__ void load(int, Beside&) const {}
  };
  static __device__ __forceinline__ float row_scale(const LinearArgs& a, int layer, int n) { return stored_row_scale(a, layer, n); }
};

// FP8 with scales of 128 k, which four units of 32 k share: they multiply the float32 sums, for a float16 operand times a scale
// would round.
struct ScalesOfBlocks {
  static constexpr int kSpans = 1;
  using Beside = FourFloats;
  struct Reader {
    const float* scales;

    template <class Lane>
    __device__ __forceinline__ Reader(const LinearArgs& a, int layer, const Lane& at)
        : scales(static_cast<const float*>(a.scales) + block_of(a, layer) * a.groups * kBlockRows + at.sums) {}
    __device__ __forceinline__ void load(int u, Beside& out) const {
      out.load(scales, static_cast<size_t>(u >> 2) * kBlockRows);
    }
  };
  static __device__ __forceinline__ float row_scale(const LinearArgs&, int, int) { return kHalfUnit; }
};

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

// What goes with a unit of 64 k: one group's scales and zero points, or those of each 32 k.
template <int S, class FourScales>
struct Int4Beside {
  FourScales scales[S];
  u32 zeros[S];  // as many bytes as the family's lanes need
};

// `kZeros` bytes of zero points from Lane::zeros on.
template <int S, class FourScales, int kZeros>
struct Int4Reader {
  const void* scales;
  const unsigned char* zeros;
  size_t first;
  u32 reciprocal;

  template <class Lane>
  __device__ __forceinline__ Int4Reader(const LinearArgs& a, int layer, const Lane& at)
      : scales(a.scales), reciprocal(a.group_reciprocal) {
    const size_t start = block_of(a, layer) * a.groups * kBlockRows;
    first = start + at.sums;
    zeros = a.zeros + start + at.zeros;
  }
  __device__ __forceinline__ void load(int u, Int4Beside<S, FourScales>& out) const {
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const u32 half = 2 * u + s, group = reciprocal ? __umulhi(half, reciprocal) : half;
      out.scales[s].load(scales, first + static_cast<size_t>(group) * kBlockRows);
      const unsigned char* z = zeros + static_cast<size_t>(group) * kBlockRows;
      out.zeros[s] = kZeros == 4 ? load4(z) : load1(z);
    }
  }
};

}  // namespace onecat::linear
