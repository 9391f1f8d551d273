// architectures: sm_70 compute_70
//
// FP8 on m8n8k4.
#include "linear/m8n8k4.cuh"

namespace onecat::linear {

// FP8 with scales of rows: they wait for the epilogue, beside the codes lies nothing.
struct ScalesOfRows {
  static constexpr int kSpans = 0;
  struct Beside {};
  struct Reader {
    template <class Lane>
    __device__ __forceinline__ Reader(const LinearArgs&, int, const Lane&) {}
    __device__ __forceinline__ void load(int, Beside&) const {}
  };
  static __device__ __forceinline__ float row_scale(const LinearArgs& a, int layer, int n) { return stored_row_scale(a, layer, n, kBlockRows) * kHalfUnit; }
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
