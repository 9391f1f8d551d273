// One request as the kernels of long inputs see it.
#pragma once
#include "gdn/chunk_args.h"
#include "gdn/inputs.cuh"
#include "gdn/tile.cuh"

namespace onecat::gdn {

struct Request {
  const ChunkArgs& a;
  int b, layer, slot, tokens;
  bool fresh;

  __device__ __forceinline__ Request(const ChunkArgs& a, int b) : a(a), b(b) {
    slot = load_now(a.slots + b);
    const int count = load_now(a.count + b), start = load_now(a.start + b);
    layer = load_now(a.layer) * a.mul + a.add;
    const bool known = layer >= 0 && layer < a.layers && slot >= 0 && slot < a.all_slots;
    tokens = known ? min(max(count, 0), a.tokens) : 0;
    fresh = start == 0;
  }

  __device__ __forceinline__ int chunks() const { return (tokens + kChunk - 1) / kChunk; }
  __device__ __forceinline__ int per_key() const { return a.value_heads / a.key_heads; }

  // Row i of the request, the window's rows being -3 .. -1; zeros beyond its ends. `channel` is even.
  template <class Word>
  __device__ __forceinline__ Word row(int i, int channel) const {
    const __half* window = static_cast<const __half*>(a.windows) + static_cast<size_t>(slot + 1) * kHistory * a.channels;
    const __half* rows = static_cast<const __half*>(a.rows) + static_cast<size_t>(b) * a.tokens * a.width;
    const __half* from = i < 0 ? window + i * a.channels : rows + static_cast<size_t>(i) * a.width;
    if (i >= tokens || (i < 0 && fresh)) return {};
    return *reinterpret_cast<const Word*>(from + channel);
  }

  // Places of a chunk's tiles.
  template <class T>
  __device__ __forceinline__ T* of_chunk(void* base, int chunk, int heads, int head, int elements) const {
    return static_cast<T*>(base) + (static_cast<size_t>(b * a.chunks + chunk) * heads + head) * elements;
  }
};

}  // namespace onecat::gdn
