// architectures: sm_70 compute_70
//
// FP8 on m8n8k4. Scales of rows wait for the epilogue; scales of 128 k multiply the float32 sums of their k, for in float16
// they would round.
#include "linear/m8n8k4.cuh"

namespace onecat::linear {

template <class Self, class BesideT, class ReaderT, int kSpansV>
struct Fp8 {
  static constexpr int kUnitK = 32, kSpans = kSpansV;
  using Beside = BesideT;
  using Reader = ReaderT;

  const Unit<Self>& unit;

  __device__ __forceinline__ Fp8(const LinearArgs&, const Unit<Self>& loaded) : unit(loaded) {}
  __device__ __forceinline__ void octet(int j, u32 (&out)[4]) const {
    const uint4& codes = unit.codes[j >> 1];
    decode_e4m3(component(codes, (j & 1) * 2), out[0], out[1]);
    decode_e4m3(component(codes, (j & 1) * 2 + 1), out[2], out[3]);
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
