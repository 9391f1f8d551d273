// architectures: sm_70 compute_70
//
// INT4 on m8n8k4: operands are code - zero, exact; scales multiply the float32 sums of their k, for the product of an
// 11-bit scale and a 4-bit difference would round in float16.
#include "linear/m8n8k4.cuh"

namespace onecat::linear {

// What goes with a unit of 64 k: one group's scales and zero points, or those of each 32 k.
template <int S, class FourScales>
struct Int4Beside {
  FourScales scales[S];
  u32 zeros[S];  // as many bytes as the family's lanes need
};

// `kZeros` bytes of zero points from Lane::zeros on.
template <int S, class FourScales, int kZeros>
struct Int4Reader {
  const void* scales;
  const unsigned char* zeros;
  size_t first;
  u32 reciprocal;

  template <class Lane>
  __device__ __forceinline__ Int4Reader(const LinearArgs& a, int layer, const Lane& at)
      : scales(a.scales), reciprocal(a.group_reciprocal) {
    const size_t start = block_of(a, layer) * a.groups * kBlockRows;
    first = start + at.sums;
    zeros = a.zeros + start + at.zeros;
  }
  __device__ __forceinline__ void load(int u, Int4Beside<S, FourScales>& out) const {
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const u32 half = 2 * u + s, group = reciprocal ? __umulhi(half, reciprocal) : half;
      out.scales[s].load(scales, first + static_cast<size_t>(group) * kBlockRows);
      const unsigned char* z = zeros + static_cast<size_t>(group) * kBlockRows;
      out.zeros[s] = kZeros == 4 ? load4(z) : load1(z);
    }
  }
};

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
