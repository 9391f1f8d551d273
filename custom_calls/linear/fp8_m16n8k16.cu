// architectures: sm_80 sm_90 compute_80
//
// FP8 on m16n8k16: a lane owns 8 consecutive k of each 32.
#include "linear/m16n8k16_direct.cuh"

namespace onecat::linear {

// Scales of rows wait for the epilogue; those of 128 k, which two steps share, multiply the float32 sums, for a float16 operand
// times a scale would round.
template <bool kBlocks>
struct Fp8 {
  static constexpr float kUnit = kHalfUnit;
  static constexpr int kSpans = kBlocks, kCopies = kCodePieces + kBlocks, kCodes = 1024, kScales = kTileRows * 4;  // bytes

  struct Source {
    const unsigned char *codes, *scales;
    int steps, groups, group;

    __device__ __forceinline__ Source(const LinearArgs& a, int layer)
        : codes(layer_part(a.codes, layer, a, a.units * kCodes)), scales(layer_part(a.scales, layer, a, a.groups * kScales)),
          steps(a.units), groups(a.groups), group(a.group) {}
    __device__ __forceinline__ Piece piece(int i, const Place& at, int count) const {
      if (i < kCodePieces) return code_piece(codes, static_cast<size_t>(at.tile) * steps + at.step, count, i, kCodes);
      const int first = at.step >> 1, last = (at.step + count - 1) >> 1;
      return {scales + (static_cast<size_t>(at.tile) * groups + first) * kScales, group * kCodes, (last - first + 1) * kScales};
    }
  };

  uint4 codes[2];
  float2 scales;  // of rows g and g + 8

  __device__ __forceinline__ Fp8(const LinearArgs& a, const Lane& at, const unsigned char* group, int group_first, int i) {
#pragma unroll
    for (int v = 0; v < 2; ++v) codes[v] = *reinterpret_cast<const uint4*>(group + i * kCodes + v * 512 + at.lane * 16);
    if constexpr (kBlocks) {
      const int first = ((group_first + i) >> 1) - (group_first >> 1);
      scales = *reinterpret_cast<const float2*>(group + a.group * kCodes + first * kScales + at.g * 8);
    }
  }
  // Scales of rows only.
  struct Loaded {
    uint4 codes[2];
  };
  struct Ahead {
    const unsigned char* codes;

    __device__ __forceinline__ Ahead(const LinearArgs& a, const Lane& at, int layer, int tile, int step)
        : codes(layer_part(a.codes, layer, a, a.units * kCodes) + (static_cast<size_t>(tile) * a.units + step) * kCodes + at.lane * 16) {}
    __device__ __forceinline__ void next_tile(const LinearArgs& a) { codes += a.units * kCodes; }
    __device__ __forceinline__ Loaded load(int i) const {
      return {{load_weights(codes + i * kCodes), load_weights(codes + i * kCodes + 512)}};
    }
  };
  __device__ __forceinline__ explicit Fp8(const Loaded& found) : codes{found.codes[0], found.codes[1]} {}
  static __device__ __forceinline__ int activation_k(int t, int v) { return 32 * v + 8 * t; }
  __device__ __forceinline__ void operand(int i, u32 (&out)[4]) const {
    decode_e4m3(component(codes[i >> 1], 2 * (i & 1)), out[0], out[2]);
    decode_e4m3(component(codes[i >> 1], 2 * (i & 1) + 1), out[1], out[3]);
  }
  __device__ __forceinline__ float sum_scale(int, int r) const { return r ? scales.y : scales.x; }
  static __device__ __forceinline__ float row_scale(const LinearArgs& a, int layer, int n) {
    return kBlocks ? 1.0f : stored_row_scale(a, layer, n, kTileRows);
  }
};

}  // namespace onecat::linear

ONECAT_LINEARS(, Fp8<false>)
ONECAT_LINEARS(_blocks, Fp8<true>)
ONECAT_EXPANSION(, Fp8<false>)
ONECAT_EXPANSION(_blocks, Fp8<true>)
#if __CUDA_ARCH__ >= 900
ONECAT_DIRECTS(Fp8<false>)
#endif
