// The linear on m16n8k16 (sm_80 and later): 16 weight rows are operand A, 8 activation rows operand B, so up to 8 activation
// rows cost no padding. A tile is 16 rows, a step 64 k of them. A lane 4 g + t owns rows g and g + 8 of a tile, and holds their
// sums with activation rows 2 t and 2 t + 1. The k of a step are dealt to the instructions' slots by the decoder; activations
// are dealt the same way, so the sum is over the same pairs.
//
// A block stays on its multiprocessor and works through a run of tiles. Each of its kStreams streaming warps has the same steps
// in every tile. It copies their codes, group by group, into a ring of its own in shared memory and multiplies while later
// groups are on their way; its part of the activations lies in shared memory too. One more warp adds the streaming warps' sums
// of a tile, in their order, while they go on: no barrier stops them. Which warp has which steps depends on K alone, so a row's
// sum is the same for every number of rows.
//
// A decoder D is one weight kind:
//   kSpans        parts of a step whose sums have scales of their own; 0 where operands or rows carry all scales;
//   kCopies       pieces of memory that make up a group of steps;
//   Source(args, layer).piece(i, place, count, lane): the i-th piece of `count` steps from a place on;
//   D(args, lane, group, place, i): what a lane holds of the i-th step of a group in shared memory;
//     operand(i, out)   operand A of its instruction i (out[0] and out[2] are 4 k of row g, out[1] and out[3] of row g + 8);
//     sum_scale(span, r) the factor of the sums of row g + 8 r;
//   activation_k(t, v)        where in a step the 8 consecutive k of a lane's instructions 2 v and 2 v + 1 start;
//   row_scale(args, layer, n) factor of row n, applied once.
#pragma once
#include "linear/decode.cuh"

namespace onecat::linear {

constexpr int kTileRows = 16, kStepK = 64;

struct Lane {
  int lane, g, t;

  __device__ __forceinline__ Lane() : lane(threadIdx.x & 31), g(lane >> 2), t(lane & 3) {}
};

// Where a group of steps starts.
struct Place {
  int tile, step;
};

// Bytes to copy into a group, a multiple of 16, and where they go.
struct Piece {
  const void* from;
  int offset, bytes;
};

__device__ __forceinline__ const unsigned char* layer_part(const void* stack, int layer, const LinearArgs& a, int per_tile) {
  return static_cast<const unsigned char*>(stack) + static_cast<size_t>(layer) * a.blocks * per_tile;
}

// Which tiles a block has, and which steps of each a warp has.
struct Share {
  int first_tile, last_tile;  // exclusive
  int warps;                  // that have any steps
  int first_step, steps;

  static __device__ __forceinline__ Share of(const LinearArgs& a, int warp) {
    Share s;
    s.first_tile = static_cast<long long>(a.blocks) * blockIdx.x / gridDim.x;
    s.last_tile = static_cast<long long>(a.blocks) * (blockIdx.x + 1) / gridDim.x;
    s.warps = min(kStreams, a.units);
    s.first_step = a.units * warp / s.warps;
    s.steps = a.units * (warp + 1) / s.warps - s.first_step;
    return s;
  }
};

// Sums on their way from the streaming warps to the adding one: [ring][W][X / 8][32 lanes] in shared memory. `i` counts what a
// warp gives: the sums of one pass over one tile.
template <int X>
struct Exchange {
  static constexpr int kTiles = X / 8, kRing = SharedMemory<X>::kRing, W = kStreams;
  struct Barriers {
    unsigned long long full[kRing], empty[kRing];
  };
  float4* sums;
  Barriers* barriers;

  __device__ __forceinline__ void start(int warps) const {
    if (threadIdx.x != W * 32) return;
#pragma unroll
    for (int r = 0; r < kRing; ++r) {
      barrier_start(&barriers->full[r], warps);
      barrier_start(&barriers->empty[r], 1);
    }
  }
  __device__ __forceinline__ float4* place(int slot, int warp) const {
    return sums + (slot * W + warp) * (kTiles * 32) + (threadIdx.x & 31);
  }
  __device__ __forceinline__ void give(u32 i, int warp, const float (&values)[kTiles][4]) const {
    const int slot = i % kRing;
    barrier_wait(&barriers->empty[slot], (i / kRing & 1) ^ 1);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) place(slot, warp)[m * 32] = make_float4(values[m][0], values[m][1], values[m][2], values[m][3]);
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(&barriers->full[slot]);
  }
  __device__ __forceinline__ void await(u32 i) const { barrier_wait(&barriers->full[i % kRing], i / kRing & 1); }
  __device__ __forceinline__ float4 take(u32 i, int warps, int m) const {
    const float4* at = place(i % kRing, 0) + m * 32;
    float4 sum = *at;
#pragma unroll 8
    for (int w = 1; w < warps; ++w) {
      const float4 v = at[w * (kTiles * 32)];
      sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    return sum;
  }
  __device__ __forceinline__ void done(u32 i) const {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(&barriers->empty[i % kRing]);
  }
};

// A warp's activations of one pass in the order of its steps: 2 x 16 bytes per lane, step and 8 rows; zeros after its last step.
// The first args.staged steps lie in shared memory, [staged][X / 8][2][32 lanes] per warp and pass.
template <class D, int X>
struct Activations {
  const LinearArgs& args;
  const Lane at;
  const Share& share;
  uint4* shared;  // the lane's place
  int m0;         // first row of the pass

  __device__ __forceinline__ int row(int m) const { return m0 + m * 8 + at.g; }
  __device__ __forceinline__ int k(int i, int v) const { return (share.first_step + i) * kStepK + D::activation_k(at.t, v); }
  __device__ __forceinline__ bool inside(int i, int m, int v) const {
    return i < share.steps && row(m) < args.m && k(i, v) < args.k;
  }
  __device__ __forceinline__ const __half* in_memory(int i, int m, int v) const {
    return static_cast<const __half*>(args.x) + row(m) * args.k + k(i, v);
  }
  __device__ __forceinline__ uint4* place(int i, int m, int v) const { return shared + ((i * (X / 8) + m) * 2 + v) * 32; }
  __device__ __forceinline__ void stage() const {
    for (int i = 0; i < args.staged; ++i)
#pragma unroll
      for (int m = 0; m < X / 8; ++m)
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          const bool valid = inside(i, m, v);
          copy16(place(i, m, v), valid ? in_memory(i, m, v) : args.x, valid);
        }
  }
  template <bool kAllStaged>
  __device__ __forceinline__ uint4 get(int i, int m, int v) const {
    if (kAllStaged || i < args.staged) return *place(i, m, v);
    return inside(i, m, v) ? load16(in_memory(i, m, v)) : make_uint4(0, 0, 0, 0);
  }
};

// Sums of a tile so far: with 8 activation rows each.
template <int X>
using Sums = float[X / 8][4];

template <int X>
__device__ __forceinline__ void clear(Sums<X>& sums) {
#pragma unroll
  for (int m = 0; m < X / 8; ++m)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[m][e] = 0.0f;
}

// Adds the products of instructions 2 v and 2 v + 1 of a step.
template <class D, int X>
__device__ __forceinline__ void multiply_pair(const D& weights, int v, const uint4 (&x)[X / 8], Sums<X>& sums) {
  u32 even[4], odd[4];
  weights.operand(2 * v, even);
  weights.operand(2 * v + 1, odd);
#pragma unroll
  for (int m = 0; m < X / 8; ++m) {
    mma_m16n8k16(sums[m], even, x[m].x, x[m].y);
    mma_m16n8k16(sums[m], odd, x[m].z, x[m].w);
  }
}

// Adds the products of step i of the warp's.
template <bool kAllStaged, class D, int X>
__device__ __forceinline__ void multiply_step(const D& weights, const Activations<D, X>& activations, int i, Sums<X>& sums) {
  Sums<X> parts;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    uint4 x[X / 8];
#pragma unroll
    for (int m = 0; m < X / 8; ++m) x[m] = activations.template get<kAllStaged>(i, m, v);
    if constexpr (D::kSpans == 0) {
      multiply_pair<D, X>(weights, v, x, sums);
    } else {
      if (v == 0 || D::kSpans == 2) clear<X>(parts);
      multiply_pair<D, X>(weights, v, x, parts);
      if (v == 0 && D::kSpans == 1) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float scale = weights.sum_scale(D::kSpans == 1 ? 0 : v, e >> 1);
#pragma unroll
        for (int m = 0; m < X / 8; ++m) sums[m][e] = fmaf(parts[m][e], scale, sums[m][e]);
      }
    }
  }
}

// Walks a warp's steps in groups, pass after pass, tile after tile.
struct Cursor {
  int tile, first, pass, left;  // first: step of the warp's; left: groups

  __device__ __forceinline__ void next(const Share& s, int group, int passes) {
    --left;
    first += group;
    if (first < s.steps) return;
    first = 0;
    if (++pass < passes) return;
    pass = 0;
    ++tile;
  }
};

// A warp's ring of groups in shared memory.
template <class D>
struct Ring {
  const LinearArgs& args;
  const Share& share;
  typename D::Source source;
  unsigned char* groups;
  unsigned long long* full;  // [kMostGroups] barriers

  static __device__ __forceinline__ int arrivals() {
#if __CUDA_ARCH__ >= 900
    return D::kCopies;
#else
    return 32;
#endif
  }
  __device__ __forceinline__ unsigned char* group(int slot) const { return groups + slot * args.group_bytes; }
  __device__ __forceinline__ int count(const Cursor& at) const { return min(args.group, share.steps - at.first); }
  __device__ __forceinline__ Place place(const Cursor& at) const { return {at.tile, share.first_step + at.first}; }
  // Starts copying a group; nothing happens after the last.
  __device__ __forceinline__ void fill(int slot, const Cursor& at) const {
    const int lane = threadIdx.x & 31;
    if (at.left <= 0) return;
#if __CUDA_ARCH__ >= 900
    if (lane < D::kCopies) {
      const Piece p = source.piece(lane, place(at), count(at));
      copy_and_arrive(group(slot) + p.offset, p.from, p.bytes, full + slot);
    }
#else
    for (int i = 0; i < D::kCopies; ++i) {
      const Piece p = source.piece(i, place(at), count(at));
      for (int byte = lane * 16; byte < p.bytes; byte += 512)
        copy16(group(slot) + p.offset + byte, static_cast<const unsigned char*>(p.from) + byte, true);
    }
    arrive_after_copies(full + slot);
#endif
  }
};

// More rows than X take several passes over a tile, whose codes come from the second-level cache then.
template <int X>
__device__ __forceinline__ int passes_of(const LinearArgs& a) {
  return X < kMostRows ? 1 : (a.m + X - 1) / X;
}

template <bool kAllStaged, class D, int X>
__device__ __forceinline__ void stream(const LinearArgs& a, const Exchange<X>& exchange, const Share& s, unsigned char* memory,
                                       unsigned long long* full) {
  const int warp = threadIdx.x >> 5, passes = passes_of<X>(a), pass_size = a.staged * (X / 8 * 64);
  uint4* const staged = reinterpret_cast<uint4*>(memory) + warp * passes * pass_size + (threadIdx.x & 31);
  const auto activations = [&](int pass) { return Activations<D, X>{a, Lane(), s, staged + pass * pass_size, pass * X}; };
  for (int p = 0; p < passes; ++p) activations(p).stage();

  memory += kStreams * passes * pass_size * 16;
  const Ring<D> ring{a, s, typename D::Source(a, max(layer_of(a), 0)), memory + warp * a.ring * a.group_bytes,
                     full + warp * kMostGroups};
  Cursor at{s.first_tile, 0, 0, (s.last_tile - s.first_tile) * passes * ((s.steps + a.group - 1) / a.group)}, ahead = at;
  for (int slot = 0; slot < a.ring; ++slot) {
    ring.fill(slot, ahead);
    ahead.next(s, a.group, passes);
  }
  await_copies();
  Sums<X> sums;
  clear<X>(sums);
  u32 gift = 0;
  for (int slot = 0, parity = 0; at.left > 0;) {
    const Activations<D, X> x = activations(at.pass);
    const int count = ring.count(at);
    barrier_wait(ring.full + slot, parity);
#pragma unroll 2
    for (int i = 0; i < count; ++i)
      multiply_step<kAllStaged, D, X>(D(a, Lane(), ring.group(slot), ring.place(at), i), x, at.first + i, sums);
    __syncwarp();
    ring.fill(slot, ahead);
    ahead.next(s, a.group, passes);
    at.next(s, a.group, passes);
    if (++slot == a.ring) {
      slot = 0;
      parity ^= 1;
    }
    if (at.first) continue;
    exchange.give(gift++, warp, sums);
    clear<X>(sums);
  }
}

template <class D, int X>
__device__ __forceinline__ void add_up(const LinearArgs& a, const Exchange<X>& exchange) {
  const Lane at;
  const Share s = Share::of(a, 0);
  const int layer = layer_of(a), passes = passes_of<X>(a);
  for (int i = 0; i < (s.last_tile - s.first_tile) * passes; ++i) {
    const int n = (s.first_tile + i / passes) * kTileRows + at.g, m0 = i % passes * X;
    float scales[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) scales[r] = n + 8 * r < a.n ? row_scale_or_nan<D>(a, layer, n + 8 * r) : 0.0f;
    exchange.await(i);
#pragma unroll
    for (int m = 0; m < X / 8; ++m) {
      if (m0 + m * 8 >= a.m) break;
      const float4 sum = exchange.take(i, s.warps, m);
      const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = m0 + m * 8 + at.t * 2 + (e & 1), column = n + (e >> 1) * 8;
        if (row < a.m && column < a.n) store_output(a, row, column, values[e] * scales[e >> 1]);
      }
    }
    exchange.done(i);
  }
}

// X activation rows at a time; kStreams streaming warps and one that adds.
template <class D, int X>
__device__ __forceinline__ void linear_block(const LinearArgs& a) {
  extern __shared__ uint4 dynamic[];
  __shared__ typename Exchange<X>::Barriers barriers;
  __shared__ unsigned long long full[kStreams * kMostGroups];
  const Exchange<X> exchange{reinterpret_cast<float4*>(dynamic), &barriers};
  const int warp = threadIdx.x >> 5, warps = min(kStreams, a.units);
  unsigned char* const memory = reinterpret_cast<unsigned char*>(dynamic) + SharedMemory<X>::kSums;
  exchange.start(warps);
  if (threadIdx.x < kStreams * kMostGroups) barrier_start(full + threadIdx.x, Ring<D>::arrivals());
  barriers_started();
  __syncthreads();
  if (warp == kStreams) {
    add_up<D, X>(a, exchange);
  } else if (warp < warps) {
    const Share s = Share::of(a, warp);
    if (a.staged >= s.steps) {
      stream<true, D, X>(a, exchange, s, memory, full);
    } else {
      stream<false, D, X>(a, exchange, s, memory, full);
    }
  }
}

// The layer's weight as float16 [n, k]. One warp per tile and step.
template <class D>
__device__ __forceinline__ void expand_block(const LinearArgs& a) {
  __shared__ uint4 memory[kExpandWarps][2304 / 16];
  __shared__ unsigned long long full[kExpandWarps];
  const Lane at;
  const int warp = threadIdx.x >> 5, layer = layer_of(a), step = blockIdx.y * kExpandWarps + warp, tile = blockIdx.x;
  if (threadIdx.x < kExpandWarps) barrier_start(full + threadIdx.x, Ring<D>::arrivals());
  barriers_started();
  __syncthreads();
  if (step >= a.units) return;
  const Share s{tile, tile + 1, 1, step, 1};
  const Ring<D> ring{a, s, typename D::Source(a, max(layer, 0)), reinterpret_cast<unsigned char*>(memory[warp]), full + warp};
  ring.fill(0, {tile, 0, 0, 1});
  barrier_wait(full + warp, 0);
  const D weights(a, at, ring.group(0), {tile, step}, 0);
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    const int k = step * kStepK + D::activation_k(at.t, v);
    u32 w[2][4];
    weights.operand(2 * v, w[0]);
    weights.operand(2 * v + 1, w[1]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int n = tile * kTileRows + at.g + r * 8;
      if (n >= a.n || k >= a.k) continue;
      float factor = row_scale_or_nan<D>(a, layer, n);
      if constexpr (D::kSpans > 0) factor *= weights.sum_scale(v * D::kSpans / 2, r);
      uint4* out = reinterpret_cast<uint4*>(static_cast<__half*>(a.out) + static_cast<size_t>(n) * a.k + k);
      *out = make_uint4(finish_pair(w[0][r], factor), finish_pair(w[0][r + 2], factor), finish_pair(w[1][r], factor),
                        finish_pair(w[1][r + 2], factor));
    }
  }
}

}  // namespace onecat::linear

// The kernels of a decoder (tactics: gpu_launch.cc) and its expansion.
#define ONECAT_LINEAR(SUFFIX, DECODER, X) \
  extern "C" __global__ void __launch_bounds__((onecat::linear::kStreams + 1) * 32, 1) \
      linear_x##X##SUFFIX(onecat::linear::LinearArgs a) { \
    onecat::linear::linear_block<onecat::linear::DECODER, X>(a); \
  }
#define ONECAT_LINEARS(SUFFIX, DECODER) \
  ONECAT_LINEAR(SUFFIX, DECODER, 8) \
  ONECAT_LINEAR(SUFFIX, DECODER, 16) \
  ONECAT_LINEAR(SUFFIX, DECODER, 32)
#define ONECAT_EXPANSION(SUFFIX, DECODER) \
  extern "C" __global__ void __launch_bounds__(onecat::linear::kExpandWarps * 32) \
      expand##SUFFIX(onecat::linear::LinearArgs a) { \
    onecat::linear::expand_block<onecat::linear::DECODER>(a); \
  }
