// architectures: sm_70 compute_70
//
// NVFP4 on m8n8k4: block scales join the operands, which is exact.
#include "linear/m8n8k4.cuh"

namespace onecat::linear {

constexpr int kUnitScales = 128;     // bytes of a block's unit

struct Nvfp4Reader {
  const unsigned char* scales;

  template <class Lane>
  __device__ __forceinline__ Nvfp4Reader(const LinearArgs& a, int layer, const Lane& at)
      : scales(static_cast<const unsigned char*>(a.scales) + block_of(a, layer) * a.units * kUnitScales + at.codes * 4) {}
  __device__ __forceinline__ void load(int u, u32& out) const { out = load_scales(scales + u * kUnitScales); }
};

struct Nvfp4 {
  static constexpr int kUnitK = 64, kSpans = 0;
  using Beside = u32;
  using Reader = Nvfp4Reader;

  const Unit<Nvfp4>& unit;
  u32 scales[4];

  __device__ __forceinline__ Nvfp4(const LinearArgs&, const Unit<Nvfp4>& loaded) : unit(loaded) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scales[i] = scale_pair(unit.beside, i);
  }
  __device__ __forceinline__ void octet(int j, u32 (&out)[4]) const {
    decode_e2m1(component(unit.codes[j >> 2], j & 3), out);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = multiply2(out[i], scales[j >> 1]);
  }
  static __device__ __forceinline__ float row_scale(const LinearArgs& a, int layer, int n) { return stored_row_scale(a, layer, n, kBlockRows) * kHalfUnit; }
};

}  // namespace onecat::linear

ONECAT_LINEARS(, Nvfp4)
