// How the kernels on m8n8k4 stream a block of 32 weight rows: W warps share K, unit by unit, and add their sums in the end.
//
// A decoder D is one weight kind:
//   kUnitK        k of a unit of 1024 bytes of codes;
//   kSpans        parts of a unit whose sums have scales of their own; 0 where operands or rows carry all scales;
//   Beside        what a lane loads beside a unit's codes, by Reader(args, layer, lane).load(unit number, Beside);
//   D(args, unit) the decoded view of a unit: octet(j, out) gives 8 consecutive k of the lane's row, from 8 j of the unit on, as
//                 four half2, sum_scale(span, i) the factor of the i-th of the four rows whose sums the lane holds;
//   row_scale(args, layer, n) factor of row n, applied once.
#pragma once
#include "linear/decode.cuh"

namespace onecat::linear {

constexpr int kBlockRows = 32, kUnitCodes = 1024;

// The block's place among all blocks of the stack.
__device__ __forceinline__ size_t block_of(const LinearArgs& a, int layer) {
  return static_cast<size_t>(layer) * a.blocks + blockIdx.x;
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

// Scales of groups of k: four consecutive ones, those of the rows whose sums the lane holds.

struct FourFloats {
  uint4 raw;

  // `place` counts scales.
  __device__ __forceinline__ void load(const void* scales, size_t place) {
    raw = load16(static_cast<const float*>(scales) + place);
  }
  __device__ __forceinline__ float get(int i, int) const { return __uint_as_float(component(raw, i)); }
};

// float16 or bfloat16, as `type` says when they are used.
struct FourHalves {
  uint2 raw;

  __device__ __forceinline__ void load(const void* scales, size_t place) {
    raw = load8(static_cast<const unsigned short*>(scales) + place);
  }
  __device__ __forceinline__ float get(int i, int type) const {
    const u32 pair = i < 2 ? raw.x : raw.y;
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    const float bf16 = __uint_as_float(i & 1 ? pair & 0xffff0000u : pair << 16);
    return type == kScaleBF16 ? bf16 : i & 1 ? both.y : both.x;
  }
};

}  // namespace onecat::linear
