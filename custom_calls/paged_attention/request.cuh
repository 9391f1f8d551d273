// Which keys a request's rows see, in which tiles, and where they lie.
//
// Tiles are at absolute positions and split s has the tiles that are s modulo the number of splits, so what is added to what
// for a row depends on its position alone: not on how many rows or requests there are, nor on where a window begins.
#pragma once
#include <cuda_fp16.h>

#include "paged_attention/gpu_args.h"

namespace onecat::paged_attention {

struct Request {
  const int* table;
  int start, end;  // of the new rows
  int first;       // first position that some row sees

  __device__ __forceinline__ Request(const AttendArgs& a, int b) : table(a.table + (size_t)b * a.table_pages) {
    start = a.start[b];
    const int count = max(0, min(a.count[b], a.tokens));
    end = count ? min(start + count, a.table_pages * a.page_size) : 0;
    first = max(start - a.window + 1, 0);
  }
};

// What one row sees: positions low .. high - 1. What rows that aren't real see doesn't matter: they are dropped at the end.
struct Seen {
  int low, high;

  __device__ __forceinline__ bool has(int position) const { return position >= low && position < high; }
};

__device__ __forceinline__ Seen seen_by(const AttendArgs& a, const Request& r, int t) {
  const int position = r.start + t;
  return {position - a.window + 1, a.causal ? min(position + 1, r.end) : r.end};
}

// What a thread block works on: rows first_row .. of one kv head, in splits from .. to - 1.
struct Work {
  int b, head, first_row, from, to;

  __device__ __forceinline__ Work(int batch_row, int kv_head) : b(batch_row), head(kv_head), first_row(0), from(0), to(1) {}
  __device__ __forceinline__ Work(const AttendArgs& a, int block_rows) {
    const int blocks = a.rows / block_rows, runs = (a.splits + a.run - 1) / a.run;
    int id = blockIdx.x;
    first_row = (blocks - 1 - id % blocks) * block_rows;  // later rows, which see more, start first
    id /= blocks;
    head = id % a.kv_heads;
    id /= a.kv_heads;
    from = id % runs * a.run;
    to = min(from + a.run, a.splits);
    b = id / runs;
  }
  // Of row 0 of this work among the partial results.
  __device__ __forceinline__ size_t partial_row(const AttendArgs& a, int split) const {
    return ((size_t)(b * a.kv_heads + head) * a.splits + split) * a.rows + first_row;
  }
  // Of a row of one block; null for rows of padding.
  __device__ __forceinline__ const __half* query(const AttendArgs& a, int row, int dim) const {
    const int m = first_row + row, t = m / a.group, heads = a.kv_heads * a.group;
    if (t >= a.tokens) return nullptr;
    return static_cast<const __half*>(a.q) + ((size_t)(b * a.tokens + t) * heads + head * a.group + m % a.group) * dim;
  }
};

template <int kTile>
struct Tiles {
  int end, splits, base, phase;

  // Those that hold positions first .. last - 1.
  __device__ __forceinline__ Tiles(int first, int last, int count) : end((last + kTile - 1) / kTile), splits(count) {
    const int begin = first / kTile;
    phase = begin % splits;
    base = begin - phase;
  }
  __device__ __forceinline__ int first_of(int split) const { return base + split + (split < phase ? splits : 0); }
  __device__ __forceinline__ bool any_of(int split) const { return first_of(split) < end; }
  // Whether rows at positions first .. last see all keys of a tile.
  static __device__ __forceinline__ bool whole(const AttendArgs& a, const Request& r, int tile, int first, int last) {
    const int position = tile * kTile;
    return position + kTile <= (a.causal ? first + 1 : r.end) && position > last - a.window;
  }
};

// The tiles of splits split .. stop - 1, one split after the other.
template <int kTile>
struct Walk {
  int tile, split, stop;

  __device__ __forceinline__ Walk(const Tiles<kTile>& tiles, int from, int to)
      : tile(tiles.first_of(from)), split(from), stop(to) {
    settle(tiles);
  }
  __device__ __forceinline__ bool live() const { return split < stop; }
  __device__ __forceinline__ void advance(const Tiles<kTile>& tiles) {
    tile += tiles.splits;
    settle(tiles);
  }

 private:
  __device__ __forceinline__ void settle(const Tiles<kTile>& tiles) {
    while (live() && tile >= tiles.end) tile = tiles.first_of(++split);
  }
};

// Looks pages up. Pages are multiples of 16 tokens; the reciprocal is exact for units of 16 tokens below 2^32 / (S / 16).
struct Pages {
  const int* table;
  unsigned reciprocal;  // 0 for pages of one unit
  int size, first_page, last;

  __device__ __forceinline__ Pages(const AttendArgs& a, const Request& r)
      : table(r.table), size(a.page_size), first_page(*a.first_page), last(a.pages - 1) {
    const unsigned units = static_cast<unsigned>(size) >> 4;
    reciprocal = units > 1 ? 0xffffffffu / units + 1 : 0;
  }
  __device__ __forceinline__ int place(int position) const {
    const unsigned unit = static_cast<unsigned>(position) >> 4;
    return reciprocal ? __umulhi(unit, reciprocal) : unit;
  }
  __device__ __forceinline__ int entry(int position) const { return table[place(position)]; }
  // Token of the cache at a position whose entry is known. An entry outside the cache reads some page, not foreign memory.
  __device__ __forceinline__ size_t token(int entry, int position) const {
    return (size_t)max(0, min(first_page + entry, last)) * size + (position - place(position) * size);
  }
};

}  // namespace onecat::paged_attention
