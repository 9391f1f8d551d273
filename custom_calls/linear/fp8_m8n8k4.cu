// architectures: sm_70 compute_70
//
// FP8 on m8n8k4.
#include "linear/m8n8k4.cuh"

namespace onecat::linear {

template <class Scales>
struct Fp8 : Scales {
  static constexpr int kUnitK = 32;

  const Unit<Fp8>& unit;

  __device__ __forceinline__ Fp8(const LinearArgs&, const Unit<Fp8>& loaded) : unit(loaded) {}
  __device__ __forceinline__ void octet(int j, u32 (&out)[4]) const {
    const uint4& codes = unit.codes[j >> 1];
    decode_e4m3(component(codes, (j & 1) * 2), out[0], out[1]);
    decode_e4m3(component(codes, (j & 1) * 2 + 1), out[2], out[3]);
  }
  __device__ __forceinline__ float sum_scale(int, int i) const { return unit.beside.get(i, kScaleF32); }
};

using Fp8Rows = Fp8<ScalesOfRows>;
using Fp8Blocks = Fp8<ScalesOfBlocks>;

}  // namespace onecat::linear

ONECAT_LINEARS(, Fp8Rows)
ONECAT_LINEARS(_blocks, Fp8Blocks)
