// architectures: sm_70 compute_70
//
// NVFP4 linear for sm_70: m8n8k4 gives each of a warp's four quad-pairs its own 8x8x4 product. All four take the same 8
// activation rows (operand A) and another octet of weight rows (operand B). A lane owns one weight row.
//
// With lane l, quad-pair q = (l & 15) / 4 and h = l / 16: operand A and B hold row and column (l & 3) + 4 h with 4
// consecutive k; element i of the sums is row (l & 1) + (i & 2) + 4 h, column (i & 4) + (l & 2) + (i & 1).
#include "linear/nvfp4_device.cuh"

namespace onecat::linear {

__device__ __forceinline__ void mma(float (&c)[8], u32 a0, u32 a1, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
      "{%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}

// Scale of group `I` of the unit, for word pair i of half q: I = 2 q + i / 2.
__device__ __forceinline__ void unit_scales(u32 w, u32 (&out)[4]) {
  out[0] = scale_pair<0>(w);
  out[1] = scale_pair<1>(w);
  out[2] = scale_pair<2>(w);
  out[3] = scale_pair<3>(w);
}

// Word -> 8 consecutive k of one row as four half2.
__device__ __forceinline__ void decode_row(u32 word, u32 scale, u32 (&out)[4]) {
  decode_word(word, out);
#pragma unroll
  for (int j = 0; j < 4; ++j) out[j] = multiply2(out[j], scale);
}

// X activation rows per block, whose W warps share K.
template <int X, int W>
__device__ __forceinline__ void linear_block(const Nvfp4Args& a) {
  __shared__ Partials<W, X> partials;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int h = lane >> 4, octet = ((lane & 15) >> 2) * 8, r = (lane & 3) + 4 * h, row = octet + r;
  const int m0 = blockIdx.y * X, layer = layer_of(a);
  float sums[X / 8][8] = {};
  if (layer >= 0) {
    stream_units<W>(UnitReader(a, layer, row * 16, row * 4), [&](int u, const Unit& unit) {
      u32 scales[4];
      unit_scales(unit.scales, scales);
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const u32 words[4] = {unit.codes[q].x, unit.codes[q].y, unit.codes[q].z, unit.codes[q].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          u32 w[4];
          decode_row(words[i], scales[2 * q + (i >> 1)], w);
#pragma unroll
          for (int t = 0; t < X / 8; ++t) {
            const uint4 x = load_activations(a, m0 + t * 8 + r, u * kUnitK + q * 32 + i * 8);
            mma(sums[t], x.x, x.y, w[0], w[1]);
            mma(sums[t], x.z, x.w, w[2], w[3]);
          }
        }
      }
    });
  }
#pragma unroll
  for (int t = 0; t < X / 8; ++t)
#pragma unroll
    for (int i = 0; i < 8; ++i)
      partials[warp][octet + (i & 4) + (lane & 2) + (i & 1)][t * 8 + (lane & 1) + (i & 2) + 4 * h] = sums[t][i];
  reduce_and_store<W, X>(a, partials, layer, m0);
}

}  // namespace onecat::linear

using onecat::linear::Nvfp4Args;

#define ONECAT_LINEAR(X, W, BLOCKS_PER_SM) \
  extern "C" __global__ void __launch_bounds__(W * 32, BLOCKS_PER_SM) linear_x##X##_w##W(Nvfp4Args a) { \
    onecat::linear::linear_block<X, W>(a); \
  }
ONECAT_LINEAR(8, 4, 4)
ONECAT_LINEAR(16, 4, 3)
ONECAT_LINEAR(32, 4, 2)
ONECAT_LINEAR(8, 8, 2)
ONECAT_LINEAR(16, 8, 2)
ONECAT_LINEAR(32, 8, 1)

// The layer's weight as float16 [n, k]. One warp per block of 32 rows and unit of 64 k.
extern "C" __global__ void __launch_bounds__(256) expand(Nvfp4Args a) {
  using namespace onecat::linear;
  const int row = threadIdx.x & 31, layer = layer_of(a), n = blockIdx.x * kBlockRows + row;
  const int unit = blockIdx.y * kExpandWarps + (threadIdx.x >> 5);
  if (unit >= a.units || n >= a.n) return;
  const size_t at = static_cast<size_t>(layer < 0 ? 0 : layer) * a.blocks + blockIdx.x, stored = at * a.units + unit;
  const float global = layer < 0 ? __int_as_float(0x7fc00000) : a.global[at * kBlockRows + row] * kProductScale;
  u32 scales[4];
  unit_scales(load_scales(a.scales + stored * kUnitScales + row * 4), scales);
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    const int k = unit * kUnitK + q * 32;
    if (k >= a.k) continue;
    const uint4 codes = load_weights(a.codes + stored * kUnitCodes + q * 512 + row * 16);
    const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
    uint4* out = reinterpret_cast<uint4*>(static_cast<__half*>(a.out) + static_cast<size_t>(n) * a.k + k);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 w[4];
      decode_row(words[i], scales[2 * q + (i >> 1)], w);
      out[i] = make_uint4(finish_pair(w[0], global), finish_pair(w[1], global), finish_pair(w[2], global),
                          finish_pair(w[3], global));
    }
  }
}
