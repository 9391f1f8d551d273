// architectures: sm_70 compute_70
//
// INT4 on m8n8k4: operands are code - zero, exact; scales multiply the float32 sums of their k, for the product of an
// 11-bit scale and a 4-bit difference would round in float16.
#include "linear/m8n8k4.cuh"

namespace onecat::linear {

// S groups per unit of 64 k.
template <int S, class FourScales>
struct Int4 {
  static constexpr int kUnitK = 64, kSpans = S;
  using Beside = Int4Beside<S, FourScales>;
  using Reader = Int4Reader<S, FourScales, 1>;

  const Unit<Int4>& unit;
  int type;

  __device__ __forceinline__ Int4(const LinearArgs& a, const Unit<Int4>& loaded) : unit(loaded), type(a.scale_type) {}
  __device__ __forceinline__ void octet(int j, u32 (&out)[4]) const {
    const ZeroPair zero(unit.beside.zeros[S == 1 ? 0 : j >> 2]);
    const u32 w = component(unit.codes[j >> 2], j & 3);
    out[0] = zero.step_low(w);
    out[1] = zero.step_high(w);
    out[2] = zero.step_low(w >> 8);
    out[3] = zero.step_high(w >> 8);
  }
  __device__ __forceinline__ float sum_scale(int span, int i) const { return unit.beside.scales[span].get(i, type); }
  static __device__ __forceinline__ float row_scale(const LinearArgs&, int, int) { return 1.0f; }
};

using Int4Units = Int4<1, FourHalves>;
using Int4Halves = Int4<2, FourHalves>;
using Int4Wide = Int4<2, FourFloats>;  // any groups under float32 scales

}  // namespace onecat::linear

ONECAT_LINEARS(, Int4Units)
ONECAT_LINEARS(_halves, Int4Halves)
ONECAT_LINEARS(_wide, Int4Wide)
