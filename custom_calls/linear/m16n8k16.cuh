// The linear on m16n8k16 (sm_80 and later): 16 weight rows are operand A, 8 activation rows operand B, so up to 8 activation
// rows cost no padding. A tile is 16 rows, a step 64 k of them. A lane 4 g + t owns rows g and g + 8 of a tile, and holds their
// sums with activation rows 2 t and 2 t + 1. The k of a step are dealt to the instructions' slots by the decoder; activations
// are dealt the same way, so the sum is over the same pairs.
//
// A block stays on its multiprocessor and works through a run of tiles. One warp copies codes, group by group of steps, into a
// ring in shared memory. kStreams warps multiply: of each group they take turns at the steps, and the activations of a warp's
// steps lie in shared memory. One more warp adds the sums of a tile in the order of the warps, while they go on: no barrier
// stops all. Which warp has which steps depends on K alone, so a row's sum is the same for every number of rows.
//
// A decoder D is one weight kind:
//   kSpans        parts of a step whose sums have scales of their own; 0 where operands or rows carry all scales;
//   kCopies       pieces of memory that make up a group of steps;
//   Source(args, layer).piece(i, place, count): the i-th piece of `count` steps from a place on;
//   D(args, lane, group, first, i): what a lane holds of the i-th step of a group in shared memory that starts with step `first`;
//     operand(i, out)   operand A of its instruction i (out[0] and out[2] are 4 k of row g, out[1] and out[3] of row g + 8);
//     sum_scale(span, r) the factor of the sums of row g + 8 r;
//   activation_k(t, v)        where in a step the 8 consecutive k of a lane's instructions 2 v and 2 v + 1 start;
//   row_scale(args, layer, n) * kUnit factor of row n, applied once.
#pragma once
#include "linear/m16n8k16_stream.cuh"

namespace onecat::linear {

// A warp's activations: 2 x 16 bytes per lane, step and 8 rows; its i-th step is number first + i * kStreams. The
// first args.staged of them lie in shared memory, [staged][X / 8][2][32 lanes] per warp.
template <class D, int X>
struct Activations {
  const LinearArgs& args;
  const Lane at;
  int first;
  uint4* shared;  // the lane's place
  int m0;         // first row

  __device__ __forceinline__ int row(int m) const { return m0 + m * 8 + at.g; }
  __device__ __forceinline__ int k(int i, int v) const { return (first + i * kStreams) * kStepK + D::activation_k(at.t, v); }
  __device__ __forceinline__ bool inside(int i, int m, int v) const { return row(m) < args.m && k(i, v) < args.k; }
  __device__ __forceinline__ const __half* in_memory(int i, int m, int v) const {
    return static_cast<const __half*>(args.x) + row(m) * args.k + k(i, v);
  }
  __device__ __forceinline__ uint4 from_memory(int i, int m, int v) const {
    return inside(i, m, v) ? load16(in_memory(i, m, v)) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ uint4* place(int i, int m, int v) const { return shared + ((i * (X / 8) + m) * 2 + v) * 32; }
  // Steps from `left` / kStreams on are zeros.
  __device__ __forceinline__ void stage(int left) const {
    for (int i = 0; i < args.staged; ++i)
#pragma unroll
      for (int m = 0; m < X / 8; ++m)
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          const bool valid = i * kStreams < left && inside(i, m, v);
          copy16(place(i, m, v), valid ? in_memory(i, m, v) : args.x, valid);
        }
  }
  template <bool kAllStaged>
  __device__ __forceinline__ uint4 get(int i, int m, int v) const {
    if (kAllStaged || i < args.staged) return *place(i, m, v);
    return from_memory(i, m, v);
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

// Adds the products of a step; x(m, v) are its activations.
template <class D, int X, class Fetch>
__device__ __forceinline__ void multiply_step(const D& weights, const Fetch& fetch, Sums<X>& sums) {
  Sums<X> parts;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    uint4 x[X / 8];
#pragma unroll
    for (int m = 0; m < X / 8; ++m) x[m] = fetch(m, v);
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

template <class D, int S>
__device__ __forceinline__ void copy_codes(const LinearArgs& a, const Work<S>& work, Ring<D> ring, int layer) {
  const typename D::Source source(a, max(layer, 0));
  for (int i = 0; i < work.tiles; ++i) {
    for (int first = 0; first < work.steps; first += a.group) {
      ring.await_empty();
      ring.fill(source, {work.first_tile + i, work.first_step + first}, min(a.group, work.steps - first));
      ring.next();
    }
  }
}

template <bool kAllStaged, class D, int X, int S>
__device__ __forceinline__ void multiply(const LinearArgs& a, const Work<S>& work, const Exchange<X>& exchange, Ring<D> ring,
                                         uint4* staged) {
  const Lane at;
  const int warp = threadIdx.x >> 5;
  const Activations<D, X> x{a, at, work.first_step + warp, staged + warp * a.staged * (X / 8 * 64) + at.lane, 0};
  x.stage(work.steps - warp);
  await_copies();
  for (u32 i = 0; i < work.tiles; ++i) {
    Sums<X> sums;
    clear<X>(sums);
    int done = 0;
    for (int first = 0; first < work.steps; first += a.group) {
      ring.await_full();
      const int count = min(a.group, work.steps - first);
#pragma unroll 2
      for (int step = warp; step < count; step += kStreams, ++done)
        multiply_step<D, X>(D(a, at, ring.group(), work.first_step + first, step),
                            [&](int m, int v) { return x.template get<kAllStaged>(done, m, v); }, sums);
      ring.leave();
      ring.next();
    }
    exchange.give(i, warp, sums);
  }
}

// The same for G steps per warp, kHeldGroup of them to a group: the activations of 8 rows stay in registers, those of
// the next 8 in shared memory, [G][2][32 lanes] per warp. Nothing branches between the steps: a warp that lacks the last one
// multiplies another step's codes by zeros.
template <class D, int X, int S, int G>
__device__ __forceinline__ void multiply_held(const LinearArgs& a, const Work<S>& work, const Exchange<X>& exchange, Ring<D> ring,
                                              uint4* staged) {
  const Lane at;
  const int warp = threadIdx.x >> 5;
  const Activations<D, 8> x{a, at, work.first_step + warp, nullptr, 0}, next{a, at, work.first_step + warp, staged + warp * (G * 64) + at.lane, 8};
  uint4 held[G][2];
  if constexpr (X == 16) next.stage(work.steps - warp);
#pragma unroll
  for (int i = 0; i < G; ++i)
#pragma unroll
    for (int v = 0; v < 2; ++v)
      held[i][v] = warp + i * kStreams < work.steps ? x.from_memory(i, 0, v) : make_uint4(0, 0, 0, 0);
  await_copies();
  for (u32 tile = 0; tile < work.tiles; ++tile) {
    Sums<X> sums;
    clear<X>(sums);
#pragma unroll
    for (int i = 0; i < G; ++i) {
      constexpr int kGroup = kHeldGroup * kStreams;
      const int first = i / kHeldGroup * kGroup, count = min(kGroup, work.steps - first);
      if (i % kHeldGroup == 0) ring.await_full();
      multiply_step<D, X>(D(a, at, ring.group(), work.first_step + first, min(warp + i % kHeldGroup * kStreams, count - 1)),
                          [&](int m, int v) { return m ? *next.place(i, 0, v) : held[i][v]; }, sums);
      if (i % kHeldGroup == kHeldGroup - 1 || i == G - 1) {
        ring.leave();
        ring.next();
      }
    }
    exchange.give(tile, warp, sums);
  }
}

// Factors of the lane's two weight rows, without the unit: nothing touches them before they are used, so nothing waits.
template <class D>
struct RowScales {
  float values[2];

  __device__ __forceinline__ RowScales(const LinearArgs& a, int layer, int n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) values[r] = D::row_scale(a, max(layer, 0), min(n + 8 * r, a.n - 1));
  }
};

// A layer outside the stack gives NaN: a handler can't read the index.
template <class D>
__device__ __forceinline__ float unit_or_nan(int layer) {
  return layer < 0 ? __int_as_float(0x7fc00000) : D::kUnit;
}

template <class D, int X>
__device__ __forceinline__ void store_sums(const LinearArgs& a, const float4& sum, const RowScales<D>& scales, float unit, int m, int n) {
  const Lane at;
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int row = m + at.t * 2 + (e & 1), column = n + (e >> 1) * 8;
    if (row < a.m && column < a.n) store_output(a, row, column, values[e] * (scales.values[e >> 1] * unit));
  }
}

template <class D, int X, int S>
__device__ __forceinline__ void add_up(const LinearArgs& a, const Work<S>& work, const Exchange<X>& exchange, Inbox<X, S>& inbox,
                                       int layer) {
  const auto row = [&](int i) { return (work.first_tile + i) * kTileRows + Lane().g; };
  const float unit = unit_or_nan<D>(layer);
  RowScales<D> ahead(a, layer, row(0));
  for (u32 i = 0; i < work.tiles; ++i) {
    const RowScales<D> scales = ahead;
    const int n = row(i);
    ahead = RowScales<D>(a, layer, row(i + 1));
    exchange.await(i);
#if __CUDA_ARCH__ >= 900
    if constexpr (S > 1) {
      if (work.rank) {
        inbox.await_empty(i);
      } else {
        inbox.await_full(i);
      }
    }
#endif
#pragma unroll
    for (int m = 0; m < X / 8; ++m) {
      if (m * 8 >= a.m) break;
      float4 sum = exchange.take(i, work.warps, m);
#if __CUDA_ARCH__ >= 900
      if constexpr (S > 1) {
        if (work.rank) {
          inbox.send(i, work.rank, m, sum);
          continue;
        }
#pragma unroll
        for (int r = 0; r < S - 1; ++r) sum = plus(sum, inbox.sums[r][i % inbox.kSlots][m][threadIdx.x & 31]);
      }
#endif
      store_sums<D, X>(a, sum, scales, unit, m * 8, n);
    }
    exchange.done(i);
#if __CUDA_ARCH__ >= 900
    if constexpr (S > 1) {
      if (work.rank) {
        inbox.sent(i);
      } else {
        inbox.taken(i);
      }
    }
#endif
  }
}

// Up to X activation rows; kStreams warps that multiply, one that adds, one that copies.
template <class D, int X, int S>
__device__ __forceinline__ void linear_block(const LinearArgs& a) {
  extern __shared__ __align__(128) uint4 dynamic[];
  __shared__ typename Exchange<X>::Barriers exchange_barriers;
  __shared__ typename Ring<D>::Barriers ring_barriers;
  __shared__ Inbox<X, S> inbox;
  const int warp = threadIdx.x >> 5, layer = warp < kStreams ? 0 : layer_of(a);
  const Work<S> work(a);
  const Exchange<X> exchange{reinterpret_cast<float4*>(dynamic), &exchange_barriers};
  uint4* const staged = dynamic + SharedMemory<X>::kSums / 16;
  const int staged_bytes = a.staged * SharedMemory<X>::kStep / (a.held ? 2 : 1);
  const Ring<D> ring(a, reinterpret_cast<unsigned char*>(staged) + staged_bytes, &ring_barriers);
  if (threadIdx.x == 0) Ring<D>::start(&ring_barriers, work.warps);
  if (threadIdx.x == 32) exchange.start(work.warps);
  if (S > 1 && threadIdx.x == 64) inbox.start();
  barriers_started();
  meet<S>();
  if (warp == kStreams) {
    add_up<D, X, S>(a, work, exchange, inbox, layer);
    if (S > 1) meet<S>();  // nobody's shared memory goes while others may still reach for it
  } else if (warp == kStreams + 1) {
    copy_codes<D, S>(a, work, ring, layer);
  } else if (warp < work.warps) {
    switch (a.held) {
      case 1: return multiply_held<D, X, S, 1>(a, work, exchange, ring, staged);
      case 2: return multiply_held<D, X, S, 2>(a, work, exchange, ring, staged);
      case 3: return multiply_held<D, X, S, 3>(a, work, exchange, ring, staged);
      case 4: return multiply_held<D, X, S, 4>(a, work, exchange, ring, staged);
      case 5: return multiply_held<D, X, S, 5>(a, work, exchange, ring, staged);
    }
    if (a.staged * kStreams >= work.steps) {
      multiply<true, D, X, S>(a, work, exchange, ring, staged);
    } else {
      multiply<false, D, X, S>(a, work, exchange, ring, staged);
    }
  }
}

// The layer's weight as float16 [n, k]. A block has kExpandWarps steps of one tile, which are a group.
template <class D>
__device__ __forceinline__ void expand_block(const LinearArgs& a) {
  extern __shared__ uint4 dynamic[];
  __shared__ typename Ring<D>::Barriers barriers;
  const Lane at;
  const int warp = threadIdx.x >> 5, layer = layer_of(a), tile = blockIdx.x, first = blockIdx.y * kExpandWarps;
  const int count = min(kExpandWarps, a.units - first), step = first + warp;
  const Ring<D> ring(a, reinterpret_cast<unsigned char*>(dynamic), &barriers);
  if (threadIdx.x == 0) Ring<D>::start(&barriers, 1);
  barriers_started();
  __syncthreads();
  if (warp == 0) ring.fill(typename D::Source(a, max(layer, 0)), {tile, first}, count);
  if (warp >= count) return;
  ring.await_full();
  const D weights(a, at, ring.group(), first, warp);
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
      float factor = D::row_scale(a, max(layer, 0), n) * unit_or_nan<D>(layer);
      if constexpr (D::kSpans > 0) factor *= weights.sum_scale(v * D::kSpans / 2, r);
      uint4* out = reinterpret_cast<uint4*>(static_cast<__half*>(a.out) + static_cast<size_t>(n) * a.k + k);
      *out = make_uint4(finish_pair(w[0][r], factor), finish_pair(w[0][r + 2], factor), finish_pair(w[1][r], factor),
                        finish_pair(w[1][r + 2], factor));
    }
  }
}

}  // namespace onecat::linear

// The kernels of a decoder (tactics: gpu_launch.cc) and its expansion.
#define ONECAT_LINEAR(SUFFIX, DECODER, X, S, CLUSTER) \
  extern "C" __global__ void CLUSTER __launch_bounds__((onecat::linear::kStreams + 2) * 32, 1) \
      linear_x##X##_s##S##SUFFIX(onecat::linear::LinearArgs a) { \
    onecat::linear::linear_block<onecat::linear::DECODER, X, S>(a); \
  }
#define ONECAT_LINEARS_OF(SUFFIX, DECODER, S, CLUSTER) \
  ONECAT_LINEAR(SUFFIX, DECODER, 8, S, CLUSTER) \
  ONECAT_LINEAR(SUFFIX, DECODER, 16, S, CLUSTER)
#if __CUDA_ARCH__ >= 900
#define ONECAT_LINEARS(SUFFIX, DECODER) \
  ONECAT_LINEARS_OF(SUFFIX, DECODER, 1, ) \
  ONECAT_LINEARS_OF(SUFFIX, DECODER, 2, __cluster_dims__(2, 1, 1))
#else
#define ONECAT_LINEARS(SUFFIX, DECODER) ONECAT_LINEARS_OF(SUFFIX, DECODER, 1, )
#endif
#define ONECAT_EXPANSION(SUFFIX, DECODER) \
  extern "C" __global__ void __launch_bounds__(onecat::linear::kExpandWarps * 32) \
      expand##SUFFIX(onecat::linear::LinearArgs a) { \
    onecat::linear::expand_block<onecat::linear::DECODER>(a); \
  }
