// architectures: sm_80 sm_90 compute_80
//
// INT4 on m16n8k16: a lane owns 8 consecutive k of each 32 of a step, so that an instruction stays within a group. Operands are
// code - zero, exact; scales multiply the float32 sums of their k, for the product of an 11-bit scale and a 4-bit difference
// would round in float16.
#include "linear/m16n8k16.cuh"

namespace onecat::linear {

// Two scales, those of rows g and g + 8.
struct TwoFloats {
  float2 raw;

  __device__ __forceinline__ float get(int r, int) const { return r ? raw.y : raw.x; }
};

// float16 or bfloat16, as `type` says when they are used.
struct TwoHalves {
  u32 raw;

  __device__ __forceinline__ float get(int r, int type) const {
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&raw));
    const float bf16 = __uint_as_float(r ? raw & 0xffff0000u : raw << 16);
    return type == kScaleBF16 ? bf16 : r ? both.y : both.x;
  }
};

// S groups of scales per step of 64 k.
template <int S, class TwoScales>
struct Int4 {
  static constexpr float kUnit = 1.0f;
  static constexpr int kSpans = S, kCopies = kCodePieces + 2, kCodes = 512;
  static constexpr int kScales = kTileRows / 2 * sizeof(TwoScales), kZeros = kTileRows;  // bytes per group of scales

  // The group of scales of a step's s-th part.
  static __device__ __forceinline__ int scales_of(const LinearArgs& a, int step, int s) {
    const u32 half = 2 * step + s;
    return a.group_reciprocal ? __umulhi(half, a.group_reciprocal) : half;
  }

  struct Source {
    const LinearArgs& a;
    const unsigned char *codes, *scales, *zeros;

    __device__ __forceinline__ Source(const LinearArgs& args, int layer)
        : a(args), codes(layer_part(a.codes, layer, a, a.units * kCodes)), scales(layer_part(a.scales, layer, a, a.groups * kScales)),
          zeros(layer_part(a.zeros, layer, a, a.groups * kZeros)) {}
    __device__ __forceinline__ Piece piece(int i, const Place& at, int count) const {
      if (i < kCodePieces) return code_piece(codes, static_cast<size_t>(at.tile) * a.units + at.step, count, i, kCodes);
      const int first = scales_of(a, at.step, 0), groups = scales_of(a, at.step + count - 1, 1) - first + 1;
      const size_t place = static_cast<size_t>(at.tile) * a.groups + first;
      if (i == kCodePieces) return {scales + place * kScales, a.group * kCodes, groups * kScales};
      return {zeros + place * kZeros, a.group * kCodes + a.group_scales * kScales, groups * kZeros};
    }
  };

  uint4 codes;
  TwoScales scales[S];
  u32 zeros[S];  // of rows g and g + 8, a byte each
  int type;

  __device__ __forceinline__ Int4(const LinearArgs& a, const Lane& at, const unsigned char* group, int group_first, int i)
      : codes(*reinterpret_cast<const uint4*>(group + i * kCodes + at.lane * 16)), type(a.scale_type) {
    const unsigned char* beside = group + a.group * kCodes;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const int j = scales_of(a, group_first + i, s) - scales_of(a, group_first, 0);
      scales[s] = *reinterpret_cast<const TwoScales*>(beside + j * kScales + at.g * sizeof(TwoScales));
      zeros[s] = *reinterpret_cast<const unsigned short*>(beside + a.group_scales * kScales + j * kZeros + at.g * 2);
    }
  }
  static __device__ __forceinline__ int activation_k(int t, int v) { return 32 * v + 8 * t; }
  __device__ __forceinline__ void operand(int i, u32 (&out)[4]) const {
    const ZeroPair zero_g(zeros[S == 1 ? 0 : i >> 1]), zero_g8(zeros[S == 1 ? 0 : i >> 1] >> 8);
    const u32 w = component(codes, i);
    out[0] = zero_g.step_low(w);
    out[1] = zero_g8.step_high(w);
    out[2] = zero_g.step_low(w >> 8);
    out[3] = zero_g8.step_high(w >> 8);
  }
  __device__ __forceinline__ float sum_scale(int span, int r) const { return scales[span].get(r, type); }
  static __device__ __forceinline__ float row_scale(const LinearArgs&, int, int) { return 1.0f; }
};

using Int4Units = Int4<1, TwoHalves>;
using Int4Halves = Int4<2, TwoHalves>;
using Int4Wide = Int4<2, TwoFloats>;  // any groups under float32 scales

}  // namespace onecat::linear

ONECAT_LINEARS(, Int4Units)
ONECAT_LINEARS(_halves, Int4Halves)
ONECAT_LINEARS(_wide, Int4Wide)
ONECAT_EXPANSION(, Int4Units)
ONECAT_EXPANSION(_halves, Int4Halves)
ONECAT_EXPANSION(_wide, Int4Wide)
