// Streaming, loads and the epilogue that all weight kinds and both matrix-instruction families share.
//
// A decoder D is one weight kind for one family:
//   kUnitK        k of a unit of 1024 bytes of codes;
//   kSpans        parts of a unit whose sums have scales of their own; 0 where operands or rows carry all scales;
//   Beside        what a lane loads beside a unit's codes, by Reader(args, layer, lane).load(unit number, Beside);
//   D(args, unit) the decoded view of a unit, which gives operands as float16 (m8n8k4.cuh, m16n8k16.cuh);
//   sum_scale(span, i)        factor of the i-th of the four rows whose sums the lane holds;
//   row_scale(args, layer, n) factor of row n, applied once.
#pragma once
#include "linear/gpu_args.h"
#include "linear/ptx.cuh"

namespace onecat::linear {

__device__ __forceinline__ u32 component(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Eight activations of row `row` from k on, zeros outside the matrix.
__device__ __forceinline__ uint4 load_activations(const LinearArgs& a, int row, int k) {
  if (row >= a.m || k >= a.k) return make_uint4(0, 0, 0, 0);
  return load16(static_cast<const __half*>(a.x) + row * a.k + k);
}

// The layer's number, or -1 when it is outside the stack.
__device__ __forceinline__ int layer_of(const LinearArgs& a) {
  const int layer = *a.index * a.mul + a.add;
  return layer >= 0 && layer < a.layers ? layer : -1;
}

// The block's place among all blocks of the stack.
__device__ __forceinline__ size_t block_of(const LinearArgs& a, int layer) {
  return static_cast<size_t>(layer) * a.blocks + blockIdx.x;
}

__device__ __forceinline__ void store_output(const LinearArgs& a, int m, int n, float value) {
  const size_t at = static_cast<size_t>(m) * a.n + n;
  if (a.out_is_f16) {
    static_cast<__half*>(a.out)[at] = __float2half_rn(value);
  } else {
    static_cast<float*>(a.out)[at] = value;
  }
}

// A layer outside the stack gives NaN: a handler can't read the index.
template <class D>
__device__ __forceinline__ float row_scale_or_nan(const LinearArgs& a, int layer, int n) {
  return layer < 0 ? __int_as_float(0x7fc00000) : D::row_scale(a, layer, n);
}

// Partial sums of one block: [warp][weight row][activation row], padded against bank conflicts.
template <int W, int X>
using Partials = float[W][kBlockRows][X + 1];

// Adds the partials in warp order and stores them.
template <class D, int W, int X>
__device__ __forceinline__ void reduce_and_store(const LinearArgs& a, const Partials<W, X>& partials, int layer, int m0) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBlockRows * X; i += W * 32) {
    const int row = i % kBlockRows, m = i / kBlockRows, n = blockIdx.x * kBlockRows + row;
    if (m0 + m >= a.m || n >= a.n) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < W; ++w) sum += partials[w][row][m];
    store_output(a, m0 + m, n, sum * row_scale_or_nan<D>(a, layer, n));
  }
}

// What one lane reads of a unit: 2 x 16 bytes of codes, and what goes with them.
template <class D>
struct Unit {
  uint4 codes[2];
  typename D::Beside beside;
};

// Where one lane of a block reads its units. Lane::codes is its place among the 32 x 16 bytes of each half.
template <class D, class Lane>
struct UnitReader {
  using Loaded = Unit<D>;
  const unsigned char* codes;
  typename D::Reader beside;
  int units;

  __device__ __forceinline__ UnitReader(const LinearArgs& a, int layer, const Lane& at)
      : codes(a.codes + block_of(a, layer) * a.units * kUnitCodes + at.codes * 16), beside(a, layer, at), units(a.units) {}

  // Nothing happens beyond the last unit.
  __device__ __forceinline__ void load(int u, Unit<D>& out) const {
    if (u >= units) return;
    const unsigned char* c = codes + u * kUnitCodes;
    out.codes[0] = load_weights(c);
    out.codes[1] = load_weights(c + kUnitCodes / 2);
    beside.load(u, out.beside);
  }
};

// Streams one warp's pairs of units (warp, warp + W, ...) through registers, two pairs ahead, and calls use(unit number,
// Unit) in ascending order. More stages than two don't help: a warp has six scoreboards to wait on.
template <int W, class Reader, class Use>
__device__ __forceinline__ void stream_units(const Reader& reader, const Use& use) {
  constexpr int kStages = 2;
  const int warp = threadIdx.x >> 5, pairs = (reader.units + 1) / 2;
  typename Reader::Loaded ring[kStages][2];
#pragma unroll
  for (int d = 0; d < kStages; ++d)
#pragma unroll
    for (int i = 0; i < 2; ++i) reader.load(2 * (warp + d * W) + i, ring[d][i]);
  for (int p0 = warp; p0 < pairs; p0 += kStages * W) {
#pragma unroll
    for (int d = 0; d < kStages; ++d) {
      const int p = p0 + d * W;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int u = 2 * p + i;
        if (u >= reader.units) continue;
        use(u, ring[d][i]);
        reader.load(u + 2 * kStages * W, ring[d][i]);
      }
    }
  }
}

// Two half2 of products * factor, rounded once to float16.
__device__ __forceinline__ u32 finish_pair(u32 product, float factor) {
  const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&product));
  const __half2 h = __floats2half2_rn(f.x * factor, f.y * factor);
  return *reinterpret_cast<const u32*>(&h);
}

}  // namespace onecat::linear

// The six kernels of a decoder (tactics: gpu_launch.cc) and its expansion. Blocks per SM are what fits without spills on sm_70.
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
