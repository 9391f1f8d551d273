// architectures: sm_80 sm_90 compute_80
//
// FP8 on m16n8k16: a lane owns 8 consecutive k of a unit's 32. Scales of rows wait for the epilogue; scales of 128 k multiply
// the float32 sums of their k, for in float16 they would round.
#include "linear/m16n8k16.cuh"

namespace onecat::linear {

template <class Self, class BesideT, class ReaderT, int kSpansV>
struct Fp8 {
  static constexpr int kUnitK = 32, kSpans = kSpansV;
  using Beside = BesideT;
  using Reader = ReaderT;

  const Unit<Self>& unit;

  __device__ __forceinline__ Fp8(const LinearArgs&, const Unit<Self>& loaded) : unit(loaded) {}
  static __device__ __forceinline__ int activation_k(int t, int) { return 8 * t; }
  __device__ __forceinline__ void operand(int tile, int i, u32 (&out)[4]) const {
    decode_e4m3(component(unit.codes[tile], 2 * i), out[0], out[2]);
    decode_e4m3(component(unit.codes[tile], 2 * i + 1), out[1], out[3]);
  }
};

struct Fp8Rows : Fp8<Fp8Rows, RowsReader::Nothing, RowsReader, 0> {
  using Fp8::Fp8;
  static __device__ __forceinline__ float row_scale(const LinearArgs& a, int layer, int n) { return stored_row_scale(a, layer, n); }
};

struct Fp8Blocks : Fp8<Fp8Blocks, FourFloats, BlocksReader, 1> {
  using Fp8::Fp8;
  __device__ __forceinline__ float sum_scale(int, int i) const { return unit.beside.get(i, 0); }
  static __device__ __forceinline__ float row_scale(const LinearArgs&, int, int) { return kHalfUnit; }
};

}  // namespace onecat::linear

ONECAT_LINEARS(, Fp8Rows)
ONECAT_LINEARS(_blocks, Fp8Blocks)
