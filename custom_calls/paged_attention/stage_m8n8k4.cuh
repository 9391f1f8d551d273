// Tiles of 32 keys and values on their way through registers to shared memory, for the kernels on m8n8k4.
//
// In shared memory the 16-byte chunk c of row r lies at c ^ s(r), with s such that eight lanes meet no bank twice.
#pragma once
#include "paged_attention/caches.cuh"
#include "paged_attention/request.cuh"

namespace onecat::paged_attention {

constexpr int kTile = 32, kWarps = 8;

struct Lane {
  int lane, warp;
  int quad;               // row or column of the lane in its quad pair's octet
  int rows, columns;      // which octet of the instruction's 16 rows and 16 columns
  int upper;              // 4 in the second quad of a pair

  __device__ __forceinline__ Lane() : lane(threadIdx.x & 31), warp(__shfl_sync(~0u, threadIdx.x >> 5, 0)) {
    upper = (lane >> 4) * 4;
    quad = (lane & 3) + upper;
    rows = (lane >> 3) & 1;
    columns = (lane >> 2) & 1;
  }
  // Of sum x of the instruction.
  __device__ __forceinline__ int sum_row(int x) const { return rows * 8 + (lane & 1) + (x & 2) + upper; }
  __device__ __forceinline__ int sum_column(int x) const { return (x & 4) + (lane & 2) + (x & 1); }
};

__device__ __forceinline__ int key_turn(int row) { return (row & 3) | ((row >> 1) & 4); }
template <int kDim>
__device__ __forceinline__ int value_turn(int row) {
  return kDim == 256 ? (row & 1) | ((row & 2) << 1) : (row & 3) << 1;
}

// ---- a tile in registers: a warp has 4 tokens, which lie in one page

template <int kDim, class Cache>
struct Stage {
  static constexpr int kTokens = kTile / kWarps;
  static constexpr int kWords = Cache::kStored == 4 ? 2 : 1;                      // of 16 bytes that a lane reads together
  static constexpr int kUnits = kDim * Cache::kStored / 16 / kWords;              // of such words in a token
  static constexpr int kReads = kTokens * kUnits / 32;
  static constexpr int kChunks = Cache::kBytes == 1 ? 2 : 1;                      // of float16 that a unit becomes

  const Request& request;
  const Pages pages;
  const Lane& me;
  const size_t stride;  // bytes from token to token
  const u8 *key, *value;
  uint4 k[kReads][kWords], v[kReads][kWords];
  int tile, entry;  // to be read next; no tile if below 0

  __device__ __forceinline__ Stage(const AttendArgs& a, const Request& r, const Work& work, const Lane& lane)
      : request(r), pages(a, r), me(lane), stride((size_t)a.kv_heads * kDim * Cache::kStored) {
    const int at = work.head * kDim * Cache::kStored + me.lane % kUnits * 16 * kWords;
    key = a.k + at;
    value = a.v + at;
  }

  __device__ __forceinline__ int row(int j) const { return (j * 32 + me.lane) / kUnits; }
  __device__ __forceinline__ int unit(int j) const { return (j * 32 + me.lane) % kUnits; }

  // Notes the walk's tile, asks for its page and moves the walk on. The branch makes the entry waited for at the end of a turn,
  // while the copies are, rather than inside a product: up to a quarter faster where few rows wait for memory.
  __device__ __forceinline__ void look(Walk<kTile>& walk, const Tiles<kTile>& tiles) {
    tile = -1;
    if (!walk.live()) return;
    tile = walk.tile;
    entry = pages.entry(max(min(tile * kTile + me.warp * kTokens, request.end - 1), request.first));
    walk.advance(tiles);
  }

  __device__ __forceinline__ void read() {
    if (tile < 0) return;
    const int position = tile * kTile + me.warp * kTokens;
    const size_t from = pages.token(entry, position);
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      const int at = position + row(j);
      const bool live = at < request.end && at >= request.first;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        k[j][i] = v[j][i] = make_uint4(0, 0, 0, 0);
        if (live) {
          k[j][i] = load_once(key + (from + row(j)) * stride + 16 * i);
          v[j][i] = load_once(value + (from + row(j)) * stride + 16 * i);
        }
      }
    }
  }

  // One unit as float16 chunks.
  static __device__ __forceinline__ void expand(const uint4 (&x)[kWords], uint4 (&to)[kChunks]) {
    if constexpr (Cache::kBytes == 1) {
      expand_chunk<Cache>(x[0], to[0], to[1]);
    } else if constexpr (kWords == 2) {
      to[0] = narrow(x[0], x[1]);
    } else {
      to[0] = x[0];
    }
  }

  __device__ __forceinline__ void write(u8* keys, u8* values) const {
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      const int to = me.warp * kTokens + row(j), first = unit(j) * kChunks;
      uint4 x[kChunks], y[kChunks];
      expand(k[j], x);
      expand(v[j], y);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        *reinterpret_cast<uint4*>(keys + to * kDim * 2 + (((first + c) ^ key_turn(to)) << 4)) = x[c];
        *reinterpret_cast<uint4*>(values + to * kDim * 2 + (((first + c) ^ value_turn<kDim>(to)) << 4)) = y[c];
      }
    }
  }
};

}  // namespace onecat::paged_attention
