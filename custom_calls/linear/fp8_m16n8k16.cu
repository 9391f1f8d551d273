// architectures: sm_80 sm_90 compute_80
//
// FP8 on m16n8k16: a lane owns 8 consecutive k of a unit's 32.
#include "linear/m16n8k16.cuh"

namespace onecat::linear {

template <class Scales>
struct Fp8 : Scales {
  static constexpr int kUnitK = 32;

  const Unit<Fp8>& unit;

  __device__ __forceinline__ Fp8(const LinearArgs&, const Unit<Fp8>& loaded) : unit(loaded) {}
  static __device__ __forceinline__ int activation_k(int t, int) { return 8 * t; }
  __device__ __forceinline__ void operand(int tile, int i, u32 (&out)[4]) const {
    decode_e4m3(component(unit.codes[tile], 2 * i), out[0], out[2]);
    decode_e4m3(component(unit.codes[tile], 2 * i + 1), out[1], out[3]);
  }
  __device__ __forceinline__ float sum_scale(int, int i) const { return unit.beside.get(i, kScaleF32); }
};

using Fp8Rows = Fp8<ScalesOfRows>;
using Fp8Blocks = Fp8<ScalesOfBlocks>;

}  // namespace onecat::linear

ONECAT_LINEARS(, Fp8Rows)
ONECAT_LINEARS(_blocks, Fp8Blocks)
