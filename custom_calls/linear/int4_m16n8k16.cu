// architectures: sm_80 sm_90 compute_80
//
// INT4 on m16n8k16: a lane owns 8 consecutive k of each 32 of a unit, so that an instruction stays within a group. Operands are
// code - zero, exact; scales multiply the float32 sums of their k, for the product of an 11-bit scale and a 4-bit difference
// would round in float16.
#include "linear/m16n8k16.cuh"

namespace onecat::linear {

// S groups per unit of 64 k.
template <int S, class FourScales>
struct Int4 {
  static constexpr int kUnitK = 64, kSpans = S;
  using Beside = Int4Beside<S, FourScales>;
  using Reader = Int4Reader<S, FourScales, 4>;

  const Unit<Int4>& unit;
  int type;

  __device__ __forceinline__ Int4(const LinearArgs& a, const Unit<Int4>& loaded) : unit(loaded), type(a.scale_type) {}
  static __device__ __forceinline__ int activation_k(int t, int v) { return 32 * v + 8 * t; }
  __device__ __forceinline__ void operand(int tile, int i, u32 (&out)[4]) const {
    const u32 zeros = unit.beside.zeros[S == 1 ? 0 : i >> 1] >> (tile * 16);
    const ZeroPair zero_g(zeros), zero_g8(zeros >> 8);
    const u32 w = component(unit.codes[tile], i);
    out[0] = zero_g.step_low(w);
    out[1] = zero_g8.step_high(w);
    out[2] = zero_g.step_low(w >> 8);
    out[3] = zero_g8.step_high(w >> 8);
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
