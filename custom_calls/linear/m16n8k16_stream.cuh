// How the blocks of the body for m16n8k16 share out tiles and steps, and what their warps hand to one another in shared memory.
#pragma once
#include "linear/decode.cuh"

namespace onecat::linear {

struct Lane {
  int lane, g, t;

  __device__ __forceinline__ Lane() : lane(threadIdx.x & 31), g(lane >> 2), t(lane & 3) {}
};

__device__ __forceinline__ float4 plus(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Where a group of steps starts.
struct Place {
  int tile, step;
};

// Bytes to copy into a group, a multiple of 16, and where they go.
struct Piece {
  const void* from;
  int offset, bytes;
};

// Codes of a group are copied in up to four pieces of at least 8192 bytes: one copy of all is slower, and so are many small ones.
constexpr int kCodePieces = 4;
__device__ __forceinline__ Piece code_piece(const unsigned char* codes, size_t place, int count, int i, int step_bytes) {
  const int pieces = max(1, min(kCodePieces, count * step_bytes / 8192));
  if (i >= pieces) return {codes, 0, 0};
  const int first = count * i / pieces, last = count * (i + 1) / pieces;
  return {codes + (place + first) * step_bytes, first * step_bytes, (last - first) * step_bytes};
}

__device__ __forceinline__ const unsigned char* layer_part(const void* stack, int layer, const LinearArgs& a, int per_tile) {
  return static_cast<const unsigned char*>(stack) + static_cast<size_t>(layer) * a.blocks * per_tile;
}

// The tiles and steps of a block.
template <int S>
struct Work {
  int rank, first_tile, tiles, first_step, steps, warps;  // warps: that multiply

  __device__ __forceinline__ explicit Work(const LinearArgs& a) {
    const int cluster = blockIdx.x / S, clusters = gridDim.x / S;
    rank = blockIdx.x % S;
    first_tile = a.blocks * cluster / clusters;
    tiles = a.blocks * (cluster + 1) / clusters - first_tile;
    first_step = a.units * rank / S;
    steps = a.units * (rank + 1) / S - first_step;
    warps = min(kStreams, steps);
  }
};

// Sums on their way from the streaming warps to the adding one: [ring][W][X / 8][32 lanes] in shared memory. `i` counts
// tiles.
template <int X>
struct Exchange {
  static constexpr int kTiles = X / 8, kRing = SharedMemory<X>::kRing, W = kStreams;
  struct Barriers {
    unsigned long long full[kRing], empty[kRing];
  };
  float4* sums;
  Barriers* barriers;

  __device__ __forceinline__ void start(int warps) const {
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
#pragma unroll
    for (int w = 1; w < W; ++w) {
      if (w >= warps) continue;
      const float4 v = at[w * (kTiles * 32)];
      sum = plus(sum, v);
    }
    return sum;
  }
  __device__ __forceinline__ void done(u32 i) const {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(&barriers->empty[i % kRing]);
  }
};

// Groups of steps in shared memory: the copying warp fills a slot when all that multiply have left it.
template <class D>
struct Ring {
  struct Barriers {
    unsigned long long full[kMostGroups], empty[kMostGroups];
  };
  const LinearArgs& args;
  unsigned char* memory;
  Barriers* barriers;
  int slot, parity;

  __device__ __forceinline__ Ring(const LinearArgs& a, unsigned char* m, Barriers* b) : args(a), memory(m), barriers(b), slot(0), parity(0) {}
  static __device__ __forceinline__ void start(Barriers* b, int streams) {
#if __CUDA_ARCH__ >= 900
    constexpr int kCopying = D::kCopies;
#else
    constexpr int kCopying = 32;
#endif
    for (int i = 0; i < kMostGroups; ++i) {
      barrier_start(&b->full[i], kCopying);
      barrier_start(&b->empty[i], streams);
    }
  }
  __device__ __forceinline__ unsigned char* group() const { return memory + slot * args.group_bytes; }
  __device__ __forceinline__ void next() {
    if (++slot < args.ring) return;
    slot = 0;
    parity ^= 1;
  }
  __device__ __forceinline__ void await_full() const { barrier_wait(&barriers->full[slot], parity); }
  __device__ __forceinline__ void await_empty() const { barrier_wait(&barriers->empty[slot], parity ^ 1); }
  __device__ __forceinline__ void leave() const {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(&barriers->empty[slot]);
  }
  __device__ __forceinline__ void fill(const typename D::Source& source, const Place& at, int count) const {
    const int lane = threadIdx.x & 31;
#if __CUDA_ARCH__ >= 900
    if (lane < D::kCopies) {
      const Piece p = source.piece(lane, at, count);
      copy_and_arrive(group() + p.offset, p.from, p.bytes, &barriers->full[slot]);
    }
#else
    for (int i = 0; i < D::kCopies; ++i) {
      const Piece p = source.piece(i, at, count);
      for (int byte = lane * 16; byte < p.bytes; byte += 512)
        copy16(group() + p.offset + byte, static_cast<const unsigned char*>(p.from) + byte, true);
    }
    arrive_after_copies(&barriers->full[slot]);
#endif
  }
};

// Sums that the adding warps of a cluster's other blocks send to that of the first.
template <int X, int S>
struct Inbox {
  static constexpr int kSlots = X == 8 ? 8 : 4, kTiles = X / 8;
  float4 sums[S > 1 ? S - 1 : 1][kSlots][kTiles][32];
  unsigned long long full[kSlots], empty[kSlots];

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      barrier_start(&full[i], S - 1);
      barrier_start(&empty[i], 1);
    }
  }
#if __CUDA_ARCH__ >= 900
  __device__ __forceinline__ void await_empty(u32 i) { barrier_wait_cluster(&empty[i % kSlots], (i / kSlots & 1) ^ 1); }
  __device__ __forceinline__ void await_full(u32 i) { barrier_wait_cluster(&full[i % kSlots], i / kSlots & 1); }
  __device__ __forceinline__ void send(u32 i, int rank, int m, const float4& v) {
    store_peer(peer_address(&sums[rank - 1][i % kSlots][m][threadIdx.x & 31], 0), v);
  }
  __device__ __forceinline__ void sent(u32 i) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) arrive_peer(peer_address(&full[i % kSlots], 0));
  }
  __device__ __forceinline__ void taken(u32 i) {
    __syncwarp();
    const int lane = threadIdx.x & 31;
    if (lane > 0 && lane < S) arrive_peer(peer_address(&empty[i % kSlots], lane));
  }
#endif
};

template <int S>
__device__ __forceinline__ void meet() {
#if __CUDA_ARCH__ >= 900
  if constexpr (S > 1) return cluster_meet();
#endif
  __syncthreads();
}

}  // namespace onecat::linear
