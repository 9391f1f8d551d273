// architectures: sm_80 sm_90 compute_80
//
// NVFP4 on m16n8k16: the 64 k of a step are dealt such that a lane owns one scale group of its two rows. Block scales join the
// operands, which is exact.
#include "linear/m16n8k16_direct.cuh"

namespace onecat::linear {

struct Nvfp4 {
  static constexpr float kUnit = kHalfUnit;
  static constexpr int kSpans = 0, kCopies = kCodePieces + 1, kCodes = 512, kScales = 64;  // bytes per step

  struct Source {
    const unsigned char *codes, *scales;
    int steps, group;

    __device__ __forceinline__ Source(const LinearArgs& a, int layer)
        : codes(layer_part(a.codes, layer, a, a.units * kCodes)), scales(layer_part(a.scales, layer, a, a.units * kScales)),
          steps(a.units), group(a.group) {}
    __device__ __forceinline__ Piece piece(int i, const Place& at, int count) const {
      const size_t place = static_cast<size_t>(at.tile) * steps + at.step;
      if (i < kCodePieces) return code_piece(codes, place, count, i, kCodes);
      return {scales + place * kScales, group * kCodes, count * kScales};
    }
  };

  uint4 codes;
  u32 scales[2];  // of rows g and g + 8

  __device__ __forceinline__ Nvfp4(const LinearArgs& a, const Lane& at, const unsigned char* group, int, int i)
      : codes(*reinterpret_cast<const uint4*>(group + i * kCodes + at.lane * 16)) {
    expand_scales(*reinterpret_cast<const unsigned short*>(group + a.group * kCodes + i * kScales + at.lane * 2));
  }
  struct Loaded {
    uint4 codes;
    u32 scales;
  };
  struct Ahead {
    const unsigned char *codes, *scales;

    __device__ __forceinline__ Ahead(const LinearArgs& a, const Lane& at, int layer, int tile, int step) {
      const size_t place = static_cast<size_t>(tile) * a.units + step;
      codes = layer_part(a.codes, layer, a, a.units * kCodes) + place * kCodes + at.lane * 16;
      scales = layer_part(a.scales, layer, a, a.units * kScales) + place * kScales + at.lane * 2;
    }
    __device__ __forceinline__ void next_tile(const LinearArgs& a) {
      codes += a.units * kCodes;
      scales += a.units * kScales;
    }
    __device__ __forceinline__ Loaded load(int i) const { return {load_weights(codes + i * kCodes), load2(scales + i * kScales)}; }
  };
  __device__ __forceinline__ explicit Nvfp4(const Loaded& found) : codes(found.codes) { expand_scales(found.scales); }
  __device__ __forceinline__ void expand_scales(u32 raw) {
    const u32 both = multiply2(__byte_perm(raw, 0, 0x4140) << 7, kScaleUnit);
    scales[0] = __byte_perm(both, 0, 0x1010);
    scales[1] = __byte_perm(both, 0, 0x3232);
  }
  static __device__ __forceinline__ int activation_k(int t, int v) { return 16 * t + 8 * v; }
  __device__ __forceinline__ void operand(int i, u32 (&out)[4]) const {
    decode_e2m1(component(codes, i), out);
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = multiply2(out[j], scales[j & 1]);
  }
  static __device__ __forceinline__ float row_scale(const LinearArgs& a, int layer, int n) {
    return stored_row_scale(a, layer, n, kTileRows);
  }
};

}  // namespace onecat::linear

ONECAT_LINEARS(, Nvfp4)
ONECAT_EXPANSION(, Nvfp4)
#if __CUDA_ARCH__ >= 900
ONECAT_DIRECTS(Nvfp4)
#endif
