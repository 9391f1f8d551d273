// A second body for m16n8k16, for decoders of few bytes per step: codes go from memory straight to registers, a tile ahead of
// their use. Tiles, steps and decoders are those of m16n8k16.cuh.
//
// A block stays on its multiprocessor and works through a run of tiles. K is cut into S * Q parts; each of the S blocks of a
// cluster has Q of them, and each of its kDirectWarps warps every kDirectWarps-th step of a part, in every tile: its activations
// stay in registers (8 rows, one part) or in shared memory. The sums of a batch of tiles wait in shared memory, so that nothing
// stops a warp within a batch. They are added part by part in the order of warps, then as (0 + 1) + (2 + 3): an order that
// depends on K alone, whichever blocks have the parts.
//
// A decoder D has besides:
//   Loaded                                   what a lane loads of a step;
//   Ahead(args, lane, layer, tile, step)     where: load(i) is i steps further, next_tile(args) moves on;
//   D(loaded).
#pragma once
#include "linear/m16n8k16.cuh"

namespace onecat::linear {

// The tiles of a block, and the steps of its parts.
template <int S, int Q>
struct Parts {
  int units, rank, first_tile, tiles;

  __device__ __forceinline__ explicit Parts(const LinearArgs& a) : units(a.units), rank(blockIdx.x % S) {
    const int cluster = blockIdx.x / S, clusters = gridDim.x / S;
    first_tile = a.blocks * cluster / clusters;
    tiles = a.blocks * (cluster + 1) / clusters - first_tile;
  }
  __device__ __forceinline__ int first_step(int q) const { return units * (rank * Q + q) / (S * Q); }
  __device__ __forceinline__ int steps(int q) const { return first_step(q + 1) - first_step(q); }
  // The first of a warp's steps in a part.
  __device__ __forceinline__ int slot(int q, int warp) const {
    return S * Q == 1 ? warp : (warp + (rank * Q + q) * (kDirectWarps / kDirectParts)) % kDirectWarps;
  }
};

// Places in shared memory of one lane.
template <int X, int Q>
struct DirectMemory {
  static constexpr int kTiles = X / 8;
  float4* sums;  // [tiles of a batch][Q][kDirectWarps][X / 8][32 lanes]
  uint4* x;      // [steps of the block][X / 8][2][32 lanes]; unused where registers hold them

  __device__ __forceinline__ DirectMemory(uint4* memory, int batch)
      : sums(reinterpret_cast<float4*>(memory) + (threadIdx.x & 31)),
        x(memory + batch * (Q * kDirectWarps * kTiles * 32) + (threadIdx.x & 31)) {}
  __device__ __forceinline__ float4* sum(int tile, int q, int warp, int m) const {
    return sums + (((tile * Q + q) * kDirectWarps + warp) * kTiles + m) * 32;
  }
  __device__ __forceinline__ uint4* activations(int step, int m, int v) const { return x + ((step * kTiles + m) * 2 + v) * 32; }
  // The sum of the block's parts, each in the order of warps.
  __device__ __forceinline__ float4 added(int tile, int m) const {
    float4 total;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      float4 part = *sum(tile, q, 0, m);
#pragma unroll
      for (int w = 1; w < kDirectWarps; ++w) part = plus(part, *sum(tile, q, w, m));
      total = q ? plus(total, part) : part;
    }
    return total;
  }
};

// The sum over a cluster's blocks, whose parts lie at `mine` in each block's shared memory.
template <int S>
__device__ __forceinline__ float4 sum_of_cluster(const float4* mine) {
  float4 parts[S];
#pragma unroll
  for (int r = 0; r < S; ++r) parts[r] = load_peer(peer_address(mine, r));
#pragma unroll
  for (int width = 1; width < S; width *= 2)
#pragma unroll
    for (int r = 0; r < S; r += 2 * width) parts[r] = plus(parts[r], parts[r + width]);
  return parts[0];
}

// Stores the results of a batch of `count` tiles from number `first` on. `scales` are those of the warp's first row block.
template <class D, int X, int S, int Q>
__device__ __forceinline__ void finish_batch(const LinearArgs& a, const Parts<S, Q>& parts, const DirectMemory<X, Q>& memory,
                                             int first, int count, int layer, const RowScales<D>& ahead) {
  constexpr int kTiles = X / 8;
  const int warp = threadIdx.x >> 5;
  const float unit = unit_or_nan<D>(layer);
  __syncthreads();
  if constexpr (S > 1) {
    for (int i = warp; i < count * kTiles; i += kDirectWarps)
      *memory.sum(i / kTiles, 0, 0, i % kTiles) = memory.added(i / kTiles, i % kTiles);
    cluster_meet();
  }
  for (int i = warp * S + parts.rank; i < count * kTiles; i += kDirectWarps * S) {
    const int tile = i / kTiles, m = i % kTiles, n = (first + tile) * kTileRows + Lane().g;
    const RowScales<D> scales = i < kDirectWarps * S ? ahead : RowScales<D>(a, layer, n);
    float4 sum;
    if constexpr (S > 1) {
      sum = sum_of_cluster<S>(memory.sum(tile, 0, 0, m));
    } else {
      sum = memory.added(tile, m);
    }
    store_sums<D, X>(a, sum, scales, unit, m * 8, n);
  }
  meet<S>();
}

// The steps of a warp: up to R of each part.
template <int S, int Q, int R>
struct WarpSteps {
  const Parts<S, Q>& parts;
  int warp;

  __device__ __forceinline__ int in_part(int q, int i) const { return parts.slot(q, warp) + i * kDirectWarps; }
  __device__ __forceinline__ int in_block(int q, int i) const { return parts.first_step(q) - parts.first_step(0) + in_part(q, i); }
  // Only the last may be missing, from other warps in each part.
  __device__ __forceinline__ bool exists(int q, int i) const { return i < R - 1 || in_part(q, i) < parts.steps(q); }
};

// The activations of a warp's steps: into registers, or on their way to shared memory.
template <class D, int X, int S, int Q, int R, bool kHeld>
__device__ __forceinline__ void load_activations(const LinearArgs& a, const Lane& at, const WarpSteps<S, Q, R>& steps,
                                                 const DirectMemory<X, Q>& memory, uint4 (&held)[R][2]) {
#pragma unroll
  for (int q = 0; q < Q; ++q)
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int m = 0; m < X / 8; ++m)
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          const int row = m * 8 + at.g, step = steps.parts.first_step(0) + steps.in_block(q, i);
          const int k = step * kStepK + D::activation_k(at.t, v);
          const bool valid = steps.exists(q, i) && row < a.m && k < a.k;
          const __half* from = static_cast<const __half*>(a.x) + row * a.k + k;
          if constexpr (kHeld) {
            held[i][v] = valid ? load16(from) : make_uint4(0, 0, 0, 0);
          } else if (steps.exists(q, i)) {
            copy16(memory.activations(steps.in_block(q, i), m, v), valid ? from : a.x, valid);
          }
        }
}

// R: steps of a warp in a part, at most.
template <class D, int X, int S, int Q, int R>
__device__ __forceinline__ void direct(const LinearArgs& a) {
  extern __shared__ __align__(128) uint4 dynamic[];
  constexpr int kTiles = X / 8;
  constexpr bool kHeld = X == 8 && Q == 1;
  const Lane at;
  const int warp = threadIdx.x >> 5, layer = layer_of(a);
  const Parts<S, Q> parts(a);
  const DirectMemory<X, Q> memory(dynamic, a.batch);
  const WarpSteps<S, Q, R> steps{parts, warp};
  uint4 held[R][2];
  load_activations<D, X, S, Q, R, kHeld>(a, at, steps, memory, held);
  typename D::Ahead ahead(a, at, max(layer, 0), parts.first_tile, parts.first_step(0));
  typename D::Loaded codes[Q][R];
#pragma unroll
  for (int q = 0; q < Q; ++q)
#pragma unroll
    for (int i = 0; i < R; ++i)
      if (steps.exists(q, i)) codes[q][i] = ahead.load(steps.in_block(q, i));
  if constexpr (!kHeld) await_copies();
  for (int first = 0; first < parts.tiles; first += a.batch) {
    const int count = min(a.batch, parts.tiles - first);
    const RowScales<D> scales(a, layer, (parts.first_tile + first + (warp * S + parts.rank) / kTiles) * kTileRows + at.g);
    for (int tile = 0; tile < count; ++tile) {
      const bool more = first + tile + 1 < parts.tiles;
      ahead.next_tile(a);
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        Sums<X> sums;
        clear<X>(sums);
#pragma unroll
        for (int i = 0; i < R; ++i) {
          if (!steps.exists(q, i)) continue;
          const auto fetch = [&](int m, int v) { return kHeld ? held[i][v] : *memory.activations(steps.in_block(q, i), m, v); };
          multiply_step<D, X>(D(codes[q][i]), fetch, sums);
          if (more) codes[q][i] = ahead.load(steps.in_block(q, i));
        }
#pragma unroll
        for (int m = 0; m < kTiles; ++m) *memory.sum(tile, q, warp, m) = make_float4(sums[m][0], sums[m][1], sums[m][2], sums[m][3]);
      }
    }
    finish_batch<D, X, S, Q>(a, parts, memory, parts.first_tile + first, count, layer, scales);
  }
}

template <class D, int X, int S, int Q>
__device__ __forceinline__ void direct_block(const LinearArgs& a) {
  switch (a.rounds) {
    case 4: return direct<D, X, S, Q, 4>(a);
    case 5: return direct<D, X, S, Q, 5>(a);
    case 6: return direct<D, X, S, Q, 6>(a);
  }
  if constexpr (S * Q == 1) {
    switch (a.rounds) {
      case 1: return direct<D, X, S, Q, 1>(a);
      case 2: return direct<D, X, S, Q, 2>(a);
      case 3: return direct<D, X, S, Q, 3>(a);
    }
  }
}

}  // namespace onecat::linear

#define ONECAT_DIRECT(DECODER, X, S, Q, CLUSTER) \
  extern "C" __global__ void CLUSTER __launch_bounds__(onecat::linear::kDirectWarps * 32, 1) \
      direct_x##X##_s##S##_q##Q(onecat::linear::LinearArgs a) { \
    onecat::linear::direct_block<onecat::linear::DECODER, X, S, Q>(a); \
  }
#define ONECAT_DIRECTS(DECODER) \
  ONECAT_DIRECT(DECODER, 8, 1, 1, ) \
  ONECAT_DIRECT(DECODER, 8, 1, 2, ) \
  ONECAT_DIRECT(DECODER, 8, 2, 2, __cluster_dims__(2, 1, 1)) \
  ONECAT_DIRECT(DECODER, 16, 1, 1, ) \
  ONECAT_DIRECT(DECODER, 16, 2, 1, __cluster_dims__(2, 1, 1)) \
  ONECAT_DIRECT(DECODER, 16, 4, 1, __cluster_dims__(4, 1, 1))
