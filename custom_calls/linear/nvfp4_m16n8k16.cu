// architectures: sm_80 sm_90 compute_80
//
// NVFP4 linear for GPUs with m16n8k16: 16 weight rows are operand A, 8 activation rows operand B, so up to 8 activation
// rows cost no padding. The k of one 64-wide unit are dealt to the instruction's slots such that a lane owns one scale group
// of two rows; activations are dealt the same way, so the sum is over the same pairs.
#include "linear/nvfp4_device.cuh"

namespace onecat::linear {

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Word -> operand A of one instruction: rows g and g + 8 under their scales.
__device__ __forceinline__ void decode_operand(u32 word, u32 scale_g, u32 scale_g8, u32 (&out)[4]) {
  decode_word(word, out);
  out[0] = multiply2(out[0], scale_g);
  out[1] = multiply2(out[1], scale_g8);
  out[2] = multiply2(out[2], scale_g);
  out[3] = multiply2(out[3], scale_g8);
}

// One unit of both 16-row tiles times X / 8 tiles of activations.
template <int X>
__device__ __forceinline__ void multiply_unit(const Unit& unit, const uint4 (&x)[X / 8][2], float (&sums)[X / 8][2][4]) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const u32 scale_g = tile ? scale_pair<2>(unit.scales) : scale_pair<0>(unit.scales);
    const u32 scale_g8 = tile ? scale_pair<3>(unit.scales) : scale_pair<1>(unit.scales);
    const u32 words[4] = {unit.codes[tile].x, unit.codes[tile].y, unit.codes[tile].z, unit.codes[tile].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 w[4];
      decode_operand(words[i], scale_g, scale_g8, w);
#pragma unroll
      for (int t = 0; t < X / 8; ++t) {
        const uint4& v = x[t][i >> 1];
        mma(sums[t][tile], w, i & 1 ? v.z : v.x, i & 1 ? v.w : v.y);
      }
    }
  }
}

// X activation rows per block, whose W warps share K.
template <int X, int W>
__device__ __forceinline__ void linear_block(const Nvfp4Args& a) {
  __shared__ Partials<W, X> partials;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int m0 = blockIdx.y * X, layer = layer_of(a);
  float sums[X / 8][2][4] = {};
  if (layer >= 0) {
    stream_units<W>(UnitReader(a, layer, lane * 16, lane * 4), [&](int u, const Unit& unit) {
      uint4 x[X / 8][2];
#pragma unroll
      for (int i = 0; i < X / 8; ++i) {
        const int k = u * kUnitK + t * 16;
        x[i][0] = load_activations(a, m0 + i * 8 + g, k);
        x[i][1] = load_activations(a, m0 + i * 8 + g, k + 8);
      }
      multiply_unit<X>(unit, x, sums);
    });
  }
#pragma unroll
  for (int i = 0; i < X / 8; ++i)
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        partials[warp][tile * 16 + g + (e >> 1) * 8][i * 8 + t * 2 + (e & 1)] = sums[i][tile][e];
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
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, layer = layer_of(a);
  const int unit = blockIdx.y * kExpandWarps + (threadIdx.x >> 5), k = unit * kUnitK + t * 16;
  if (unit >= a.units || k >= a.k) return;
  const size_t stored = (static_cast<size_t>(layer < 0 ? 0 : layer) * a.blocks + blockIdx.x) * a.units + unit;
  const u32 scales = load_scales(a.scales + stored * kUnitScales + lane * 4);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const uint4 codes = load_weights(a.codes + stored * kUnitCodes + tile * 512 + lane * 16);
    const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
    const u32 scale_g = tile ? scale_pair<2>(scales) : scale_pair<0>(scales);
    const u32 scale_g8 = tile ? scale_pair<3>(scales) : scale_pair<1>(scales);
    u32 rows[2][8];
    const int n = blockIdx.x * kBlockRows + tile * 16 + g;
    const float* global = a.global + static_cast<size_t>(layer < 0 ? 0 : layer) * a.blocks * kBlockRows + n;
    const float nan = __int_as_float(0x7fc00000);
    const float global_g = layer < 0 ? nan : global[0] * kProductScale, global_g8 = layer < 0 ? nan : global[8] * kProductScale;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 w[4];
      decode_operand(words[i], scale_g, scale_g8, w);
      rows[0][i * 2] = finish_pair(w[0], global_g);
      rows[0][i * 2 + 1] = finish_pair(w[2], global_g);
      rows[1][i * 2] = finish_pair(w[1], global_g8);
      rows[1][i * 2 + 1] = finish_pair(w[3], global_g8);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (n + r * 8 >= a.n) continue;
      uint4* out = reinterpret_cast<uint4*>(static_cast<__half*>(a.out) + static_cast<size_t>(n + r * 8) * a.k + k);
      out[0] = make_uint4(rows[r][0], rows[r][1], rows[r][2], rows[r][3]);
      out[1] = make_uint4(rows[r][4], rows[r][5], rows[r][6], rows[r][7]);
    }
  }
}
