// The linear on m8n8k4 (sm_70): each of a warp's four quad-pairs has its own 8x8x4 product. All four take the same 8 activation
// rows (operand A) and another octet of weight rows (operand B). A lane owns one weight row.
//
// With lane l, quad-pair q = (l & 15) / 4 and h = l / 16: operand A and B hold row and column (l & 3) + 4 h with 4
// consecutive k; element i of the sums is row (l & 1) + (i & 2) + 4 h, column (i & 4) + (l & 2) + (i & 1).
#pragma once
#include "linear/m8n8k4_stream.cuh"

namespace onecat::linear {

struct Lane {
  int h, octet, r;
  int row;    // of the block: the one whose codes the lane owns
  int codes;  // its place among the 16-byte pieces
  int zeros;
  int sums;   // place of the first of its four scales: octets are stored in the order 0 1 4 5 2 3 6 7
  int lane;

  __device__ __forceinline__ Lane() : lane(threadIdx.x & 31) {
    h = lane >> 4;
    octet = ((lane & 15) >> 2) * 8;
    r = (lane & 3) + 4 * h;
    codes = zeros = row = octet + r;
    sums = octet + (lane & 2) * 2;
  }
  // Weight and activation row of element i of the sums.
  __device__ __forceinline__ int weight_row(int i) const { return octet + (i & 4) + (lane & 2) + (i & 1); }
  __device__ __forceinline__ int activation_row(int i) const { return (lane & 1) + (i & 2) + 4 * h; }
};

// Which of the lane's four scales is that of element i, and which that of the lane's own row.
__device__ __forceinline__ int scale_of_element(int i) { return (i >> 2) * 2 + (i & 1); }
__device__ __forceinline__ int scale_of_own_row(const Lane& at) { return 2 * at.h + (at.lane & 1); }

// Octets first .. first + kCount - 1 of unit u times X / 8 tiles of activations.
template <int kCount, int X, class D>
__device__ __forceinline__ void multiply_octets(const LinearArgs& a, const Lane& at, int m0, int u, int first, const D& weights,
                                                float (&sums)[X / 8][8]) {
#pragma unroll
  for (int j = first; j < first + kCount; ++j) {
    u32 w[4];
    weights.octet(j, w);
#pragma unroll
    for (int t = 0; t < X / 8; ++t) {
      const uint4 x = load_activations(a, m0 + t * 8 + at.r, u * D::kUnitK + j * 8);
      mma_m8n8k4(sums[t], x.x, x.y, w[0], w[1]);
      mma_m8n8k4(sums[t], x.z, x.w, w[2], w[3]);
    }
  }
}

template <int X, class D>
__device__ __forceinline__ void multiply_unit(const LinearArgs& a, const Lane& at, int m0, int u, const D& weights,
                                              float (&sums)[X / 8][8]) {
  constexpr int kOctets = D::kUnitK / 8;
  if constexpr (D::kSpans == 0) {
    multiply_octets<kOctets, X>(a, at, m0, u, 0, weights, sums);
  } else {
#pragma unroll
    for (int s = 0; s < D::kSpans; ++s) {
      float parts[X / 8][8] = {};
      multiply_octets<kOctets / D::kSpans, X>(a, at, m0, u, s * (kOctets / D::kSpans), weights, parts);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float scale = weights.sum_scale(s, scale_of_element(i));
#pragma unroll
        for (int t = 0; t < X / 8; ++t) sums[t][i] = fmaf(parts[t][i], scale, sums[t][i]);
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
  float sums[X / 8][8] = {};
  if (layer >= 0) {
    stream_units<W>(UnitReader<D, Lane>(a, layer, at),
                    [&](int u, const Unit<D>& unit) { multiply_unit<X>(a, at, m0, u, D(a, unit), sums); });
  }
#pragma unroll
  for (int t = 0; t < X / 8; ++t)
#pragma unroll
    for (int i = 0; i < 8; ++i) partials[warp][at.weight_row(i)][t * 8 + at.activation_row(i)] = sums[t][i];
  reduce_and_store<D, W, X>(a, partials, layer, m0);
}

// The layer's weight as float16 [n, k]. One warp per block of 32 rows and unit.
template <class D>
__device__ __forceinline__ void expand_block(const LinearArgs& a) {
  const Lane at;
  const int layer = layer_of(a), n = blockIdx.x * kBlockRows + at.row;
  const int u = blockIdx.y * kExpandWarps + (threadIdx.x >> 5);
  if (u >= a.units || n >= a.n) return;
  Unit<D> unit;
  UnitReader<D, Lane>(a, layer < 0 ? 0 : layer, at).load(u, unit);
  const D weights(a, unit);
  const float row_scale = row_scale_or_nan<D>(a, layer, n);
  constexpr int kOctets = D::kUnitK / 8;
#pragma unroll
  for (int j = 0; j < kOctets; ++j) {
    const int k = u * D::kUnitK + j * 8;
    if (k >= a.k) continue;
    float factor = row_scale;
    if constexpr (D::kSpans > 0) factor *= weights.sum_scale(j * D::kSpans / kOctets, scale_of_own_row(at));
    u32 w[4];
    weights.octet(j, w);
    uint4* out = reinterpret_cast<uint4*>(static_cast<__half*>(a.out) + static_cast<size_t>(n) * a.k + k);
    *out = make_uint4(finish_pair(w[0], factor), finish_pair(w[1], factor), finish_pair(w[2], factor),
                      finish_pair(w[3], factor));
  }
}

}  // namespace onecat::linear

// The kernels of a decoder (tactics: gpu_launch.cc) and its expansion. Blocks per SM are what fits without spills on sm_70.
#define ONECAT_LINEAR(SUFFIX, DECODER, X, W, BLOCKS_PER_SM) \
  extern "C" __global__ void __launch_bounds__(W * 32, BLOCKS_PER_SM) \
      linear_x##X##_w##W##SUFFIX(onecat::linear::LinearArgs a) { \
    onecat::linear::linear_block<onecat::linear::DECODER, X, W>(a); \
  }
#define ONECAT_LINEARS(SUFFIX, DECODER) \
  ONECAT_LINEAR(SUFFIX, DECODER, 8, 4, 4) \
  ONECAT_LINEAR(SUFFIX, DECODER, 16, 4, 3) \
  ONECAT_LINEAR(SUFFIX, DECODER, 32, 4, 2) \
  ONECAT_LINEAR(SUFFIX, DECODER, 8, 8, (onecat::linear::DECODER::kSpans > 1 ? 1 : 2)) \
  ONECAT_LINEAR(SUFFIX, DECODER, 16, 8, (onecat::linear::DECODER::kSpans > 1 ? 1 : 2)) \
  ONECAT_LINEAR(SUFFIX, DECODER, 32, 8, 1) \
  extern "C" __global__ void __launch_bounds__(onecat::linear::kExpandWarps * 32) \
      expand##SUFFIX(onecat::linear::LinearArgs a) { \
    onecat::linear::expand_block<onecat::linear::DECODER>(a); \
  }
