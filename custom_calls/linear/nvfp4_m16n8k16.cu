// architectures: sm_80 sm_90 compute_80
//
// NVFP4 on m16n8k16: the 64 k of a unit are dealt such that a lane owns one scale group of two rows of each tile. Block scales
// join the operands, which is exact.
#include "linear/m16n8k16.cuh"

namespace onecat::linear {

struct Nvfp4 {
  static constexpr int kUnitK = 64, kSpans = 0;
  using Beside = u32;
  using Reader = Nvfp4Reader;

  const Unit<Nvfp4>& unit;
  u32 scales[4];  // of rows g and g + 8 of the first tile, then of the second

  __device__ __forceinline__ Nvfp4(const LinearArgs&, const Unit<Nvfp4>& loaded) : unit(loaded) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scales[i] = scale_pair(unit.beside, i);
  }
  static __device__ __forceinline__ int activation_k(int t, int v) { return 16 * t + 8 * v; }
  __device__ __forceinline__ void operand(int tile, int i, u32 (&out)[4]) const {
    decode_e2m1(component(unit.codes[tile], i), out);
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = multiply2(out[j], scales[tile * 2 + (j & 1)]);
  }
  static __device__ __forceinline__ float row_scale(const LinearArgs& a, int layer, int n) { return stored_row_scale(a, layer, n); }
};

}  // namespace onecat::linear

ONECAT_LINEARS(, Nvfp4)
