// The linear on m16n8k16 (sm_80 and later): 16 weight rows are operand A, 8 activation rows operand B, so up to 8 activation
// rows cost no padding. A block has two tiles of 16 rows. A lane 4 g + t owns rows g and g + 8 of each, and holds their sums
// with activation rows 2 t and 2 t + 1. The k of a unit are dealt to the instruction's slots by the decoder; activations are
// dealt the same way, so the sum is over the same pairs.
//
// A decoder gives operand(tile, i, out): operand A of the tile's instruction i (out[0] and out[2] are 4 k of row g, out[1] and
// out[3] of row g + 8); and activation_k(t, v): where in the unit the 8 consecutive k of a lane's instructions 2 v and
// 2 v + 1 start.
#pragma once
#include "linear/decode.cuh"

namespace onecat::linear {

struct Lane {
  int g, t;
  int codes;  // place among the 16-byte pieces
  int zeros, sums;  // places of rows g, g + 8, g + 16 and g + 24

  __device__ __forceinline__ Lane() : codes(threadIdx.x & 31) {
    g = codes >> 2;
    t = codes & 3;
    zeros = sums = 4 * g;
  }
};

// Instructions first .. first + kCount - 1 of one tile times X / 8 tiles of activations.
template <int kCount, int X, class D>
__device__ __forceinline__ void multiply_tile(const D& weights, int tile, int first, const uint4 (&x)[X / 8][D::kUnitK / 32],
                                              float (&sums)[X / 8][2][4]) {
#pragma unroll
  for (int i = first; i < first + kCount; ++i) {
    u32 w[4];
    weights.operand(tile, i, w);
#pragma unroll
    for (int t = 0; t < X / 8; ++t) {
      const uint4& v = x[t][i >> 1];
      mma_m16n8k16(sums[t][tile], w, i & 1 ? v.z : v.x, i & 1 ? v.w : v.y);
    }
  }
}

// One unit of both tiles.
template <int X, class D>
__device__ __forceinline__ void multiply_unit(const D& weights, const uint4 (&x)[X / 8][D::kUnitK / 32],
                                              float (&sums)[X / 8][2][4]) {
  constexpr int kInstructions = D::kUnitK / 16;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    if constexpr (D::kSpans == 0) {
      multiply_tile<kInstructions, X>(weights, tile, 0, x, sums);
    } else {
#pragma unroll
      for (int s = 0; s < D::kSpans; ++s) {
        float parts[X / 8][2][4] = {};
        multiply_tile<kInstructions / D::kSpans, X>(weights, tile, s * (kInstructions / D::kSpans), x, parts);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float scale = weights.sum_scale(s, tile * 2 + (e >> 1));
#pragma unroll
          for (int t = 0; t < X / 8; ++t) sums[t][tile][e] = fmaf(parts[t][tile][e], scale, sums[t][tile][e]);
        }
      }
    }
  }
}

// X activation rows per block, whose W warps share K.
template <class D, int X, int W>
__device__ __forceinline__ void linear_block(const LinearArgs& a) {
  __shared__ Partials<W, X> partials;
  const Lane at;
  const int warp = threadIdx.x >> 5, m0 = blockIdx.y * X, layer = layer_of(a);
  float sums[X / 8][2][4] = {};
  if (layer >= 0) {
    stream_units<W>(UnitReader<D, Lane>(a, layer, at), [&](int u, const Unit<D>& unit) {
      uint4 x[X / 8][D::kUnitK / 32];
#pragma unroll
      for (int i = 0; i < X / 8; ++i)
#pragma unroll
        for (int v = 0; v < D::kUnitK / 32; ++v)
          x[i][v] = load_activations(a, m0 + i * 8 + at.g, u * D::kUnitK + D::activation_k(at.t, v));
      multiply_unit<X>(D(a, unit), x, sums);
    });
  }
#pragma unroll
  for (int i = 0; i < X / 8; ++i)
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        partials[warp][tile * 16 + at.g + (e >> 1) * 8][i * 8 + at.t * 2 + (e & 1)] = sums[i][tile][e];
  reduce_and_store<D, W, X>(a, partials, layer, m0);
}

// The layer's weight as float16 [n, k]. One warp per block of 32 rows and unit.
template <class D>
__device__ __forceinline__ void expand_block(const LinearArgs& a) {
  const Lane at;
  const int layer = layer_of(a), u = blockIdx.y * kExpandWarps + (threadIdx.x >> 5);
  if (u >= a.units) return;
  Unit<D> unit;
  UnitReader<D, Lane>(a, layer < 0 ? 0 : layer, at).load(u, unit);
  const D weights(a, unit);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int v = 0; v < D::kUnitK / 32; ++v) {
      const int k = u * D::kUnitK + D::activation_k(at.t, v);
      u32 w[2][4];
      weights.operand(tile, 2 * v, w[0]);
      weights.operand(tile, 2 * v + 1, w[1]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int n = blockIdx.x * kBlockRows + tile * 16 + at.g + r * 8;
        if (n >= a.n || k >= a.k) continue;
        float factor = row_scale_or_nan<D>(a, layer, n);
        if constexpr (D::kSpans > 0) factor *= weights.sum_scale(v * D::kSpans / (D::kUnitK / 32), tile * 2 + r);
        uint4* out = reinterpret_cast<uint4*>(static_cast<__half*>(a.out) + static_cast<size_t>(n) * a.k + k);
        *out = make_uint4(finish_pair(w[0][r], factor), finish_pair(w[0][r + 2], factor), finish_pair(w[1][r], factor),
                          finish_pair(w[1][r + 2], factor));
      }
    }
  }
}

}  // namespace onecat::linear
