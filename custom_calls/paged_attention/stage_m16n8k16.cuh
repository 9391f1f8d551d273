// Tiles of 64 keys and values on their way to shared memory, for the kernels on m16n8k16.
//
// The 16-byte chunk c of a key row r lies at c ^ 4 (r & 1), of a value row at c ^ (r & 7): so neither the lanes of a product
// nor ldmatrix meet a bank twice.
#pragma once
#include "paged_attention/caches.cuh"
#include "paged_attention/request.cuh"

namespace onecat::paged_attention {

constexpr int kTile = 64, kWarps = 8;

struct Lane {
  int lane, warp, g, t;  // lane 4 g + t

  // The warp's number is uniform; the shuffle tells the compiler.
  __device__ __forceinline__ Lane()
      : lane(threadIdx.x & 31), warp(__shfl_sync(~0u, threadIdx.x >> 5, 0)), g(lane >> 2), t(lane & 3) {}
};

// ---- copying tiles: a warp copies 8 tokens of each, which lie in one page

template <int kDim, class Cache>
struct Stage {
  static constexpr int kRowBytes = kDim * Cache::kBytes, kChunks = kRowBytes / 16, kTileBytes = kTile * kRowBytes;
  static constexpr int kTokens = kTile / kWarps;
  static constexpr int kAtOnce = 32 / kChunks;  // tokens of one copy
  static constexpr int kCopies = kTokens / kAtOnce;
  static constexpr int kSource = 16 * Cache::kStored / Cache::kBytes;  // bytes that become one chunk
  static constexpr bool kExpands = Cache::kStored != Cache::kBytes;
  static constexpr bool kSplit = !kExpands && kCopies > 2;  // whether tiles without edges get code of their own

  const Request& request;
  const Pages pages;
  const int warp, row;  // the lane's row among those of one copy
  const size_t stride;  // bytes from token to token
  const u8 *key, *value;
  u32 key_to, value_to;  // where the first of them goes in slot 0
  int tile, entry;  // to be copied next; no tile if below 0

  __device__ __forceinline__ Stage(const AttendArgs& a, const Request& r, const Work& work, const Lane& me, u32 keys,
                                   u32 values)
      : request(r), pages(a, r), warp(me.warp), row(me.lane / kChunks),
        stride((size_t)a.kv_heads * kDim * Cache::kStored) {
    const int chunk = me.lane % kChunks, at = work.head * kDim * Cache::kStored + chunk * kSource;
    key = a.k + at;
    value = a.v + at;
    const int to = warp * kTokens + row;
    key_to = keys + to * kRowBytes + ((chunk ^ ((row & 1) << 2)) << 4);
    value_to = values + to * kRowBytes + ((chunk ^ row) << 4);
  }

  // Of copy j; rows and slots are multiples of 128 bytes.
  static __device__ __forceinline__ u32 key_place(u32 first, int j) {
    return (first ^ ((j * kAtOnce & 1) << 6)) + j * kAtOnce * kRowBytes;
  }
  static __device__ __forceinline__ u32 value_place(u32 first, int j) {
    return (first ^ ((j * kAtOnce & 7) << 4)) + j * kAtOnce * kRowBytes;
  }

  // Notes the walk's tile, asks for its page and moves the walk on. The branch makes the entry waited for at the end of a turn,
  // while the copies are, rather than inside a product: up to a quarter faster where few rows wait for memory.
  __device__ __forceinline__ void look(Walk<kTile>& walk, const Tiles<kTile>& tiles) {
    tile = -1;
    if (!walk.live()) return;
    tile = walk.tile;
    entry = pages.entry(max(min(tile * kTile + warp * kTokens, request.end - 1), request.first));
    walk.advance(tiles);
  }

  __device__ __forceinline__ void copy(int key_slot, int value_slot) const {
    if (tile >= 0) {
      const int position = tile * kTile + warp * kTokens;
      const size_t from = (pages.token(entry, position) + row) * stride;
      if (kSplit && position >= request.first && position + kTokens <= request.end)
        copy_all(key + from, value + from, key_to + key_slot * kTileBytes, value_to + value_slot * kTileBytes);
      else
        copy_live(position + row, from, key_to + key_slot * kTileBytes, value_to + value_slot * kTileBytes);
    }
    commit_copies();
  }

  __device__ __forceinline__ void copy_all(const u8* k, const u8* v, u32 keys, u32 values) const {
#pragma unroll
    for (int j = 0; j < kCopies; ++j) {
      copy_async(key_place(keys, j), k);
      copy_async(value_place(values, j), v);
      k += kAtOnce * stride;
      v += kAtOnce * stride;
    }
  }

  // At the edges of what is seen; zeros elsewhere.
  __device__ __forceinline__ void copy_live(int position, size_t from, u32 keys, u32 values) const {
#pragma unroll
    for (int j = 0; j < kCopies; ++j) {
      const int at = position + j * kAtOnce;
      const bool live = at >= request.first && at < request.end;
      const size_t source = live ? from + j * kAtOnce * stride : 0;
      copy_or_zero(key_place(keys, j), key + source, live);
      copy_or_zero(value_place(values, j), value + source, live);
    }
  }

  static __device__ __forceinline__ void copy_or_zero(u32 to, const u8* from, bool live) {
    if constexpr (kExpands)
      store_shared(to, live ? Cache::expand(from) : make_uint4(0, 0, 0, 0));
    else
      copy_async_or_zero(to, from, live);
  }
};

}  // namespace onecat::paged_attention
