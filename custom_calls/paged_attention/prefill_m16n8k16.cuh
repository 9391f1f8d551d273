// Prefill on m16n8k16 (sm_80 and later): a block of 8 warps takes 128 rows of one query head, a warp 16 of them, and goes
// through tiles of 64 keys at absolute positions; scores and weights stay in registers. Keys and values are float16 in shared
// memory, two tiles deep where it holds them. A float8 tile is copied as it is and expanded from shared memory to shared
// memory, each chunk by the thread that copied it.
//
// A tile without visible keys is an exact no-op for a row, so a row's bits depend on its position alone.
#pragma once
#include "paged_attention/stage_m16n8k16.cuh"

namespace onecat::paged_attention {

template <int kDim, class Cache>
struct PrefillBlock {
  using Copies = Stage<kDim, Cache>;
  static constexpr bool kFloat8 = Cache::kBytes == 1;
  static constexpr int kStages = kDim == 128 || __CUDA_ARCH__ >= 900 ? 2 : 1;
  static constexpr int kRowBytes = 2 * kDim, kTileBytes = kTile * kRowBytes, kChunks = kDim / 8, kOctets = kDim / 8;

  const AttendArgs& a;
  const Lane me;
  const Request request;
  const int b, query_head, first_row;
  u8 *queries, *keys, *values, *codes;  // codes: a float8 tile of keys, then one of values
  float s[kTile / 8][4], out[kOctets][4];
  float top[2], sum[2];

  __device__ __forceinline__ PrefillBlock(const AttendArgs& args, u8* shared, int batch_row, int head, int row)
      : a(args), request(args, batch_row), b(batch_row), query_head(head), first_row(row) {
    queries = shared;
    keys = queries + kPrefillRows * kRowBytes;
    values = keys + kStages * kTileBytes;
    codes = values + kStages * kTileBytes;
  }

  __device__ __forceinline__ int count() const { return request.end - request.start; }
  __device__ __forceinline__ int warp_row() const { return first_row + me.warp * 16; }
  __device__ __forceinline__ Work work() const { return {b, query_head / a.group}; }

  // Tiles that some row of this block sees.
  __device__ __forceinline__ Tiles<kTile> tiles() const {
    const int start = request.start + first_row, last = min(start + kPrefillRows, request.end);
    return Tiles<kTile>(max(start - a.window + 1, 0), a.causal ? last : request.end, 1);
  }

  // A warp copies its own rows.
  __device__ __forceinline__ void copy_queries() const {
    constexpr int kAtOnce = 32 / kChunks;
    const int heads = a.kv_heads * a.group, chunk = me.lane % kChunks;
    const u8* from = static_cast<const u8*>(a.q) + ((size_t)b * a.tokens * heads + query_head) * kRowBytes + chunk * 16;
#pragma unroll
    for (int i = 0; i < 16; i += kAtOnce) {
      const int row = me.warp * 16 + i + me.lane / kChunks, t = first_row + row;
      const bool real = t < count();
      const u32 to = shared_address(queries) + row * kRowBytes + ((chunk ^ ((row & 1) << 2)) << 4);
      copy_async_or_zero(to, from + (real ? (size_t)t * heads * kRowBytes : 0), real);
    }
  }

  __device__ __forceinline__ Copies copies() const {
    const u32 to = shared_address(kFloat8 ? codes : keys);
    return Copies(a, request, work(), me, to, kFloat8 ? to + Copies::kTileBytes : shared_address(values));
  }

  // This thread's chunks of the codes, to one stage.
  __device__ __forceinline__ void expand(const Copies& from, int slot) const {
    const u32 keys_to = shared_address(keys) + slot * kTileBytes, values_to = shared_address(values) + slot * kTileBytes;
#pragma unroll
    for (int j = 0; j < Copies::kCopies; ++j) {
      const int row = me.warp * Copies::kTokens + j * Copies::kAtOnce + from.row, chunk = me.lane % Copies::kChunks * 2;
      const u32 to = row * kRowBytes;
      uint4 low, high;
      expand_chunk<Cache>(load_shared(Copies::key_place(from.key_to, j)), low, high);
      store_shared(keys_to + to + ((chunk ^ ((row & 1) << 2)) << 4), low);
      store_shared(keys_to + to + (((chunk + 1) ^ ((row & 1) << 2)) << 4), high);
      expand_chunk<Cache>(load_shared(Copies::value_place(from.value_to, j)), low, high);
      store_shared(values_to + to + ((chunk ^ (row & 7)) << 4), low);
      store_shared(values_to + to + (((chunk + 1) ^ (row & 7)) << 4), high);
    }
  }

  __device__ __forceinline__ void multiply_keys(const u8* tile) {
    const u8* rows = queries + (me.warp * 16 + me.g) * kRowBytes;
#pragma unroll
    for (int x = 0; x < kTile / 8; ++x) s[x][0] = s[x][1] = s[x][2] = s[x][3] = 0.0f;
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
      const int at = ((4 * c + me.t) ^ ((me.g & 1) << 2)) << 4;
      const uint4 low = *reinterpret_cast<const uint4*>(rows + at);
      const uint4 high = *reinterpret_cast<const uint4*>(rows + 8 * kRowBytes + at);
#pragma unroll
      for (int x = 0; x < kTile / 8; ++x) {
        const uint4 k = *reinterpret_cast<const uint4*>(tile + (x * 8 + me.g) * kRowBytes + at);
        multiply_16x8x16(s[x], low.x, high.x, low.y, high.y, k.x, k.y);
        multiply_16x8x16(s[x], low.z, high.z, low.w, high.w, k.z, k.w);
      }
    }
  }

  __device__ __forceinline__ void mask(int tile) {
    const int first = request.start + warp_row(), position = tile * kTile;
    if (Tiles<kTile>::whole(a, request, tile, first, first + 15)) return;
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const Seen seen = seen_by(a, request, warp_row() + 8 * low + me.g);
#pragma unroll
      for (int x = 0; x < kTile / 8; ++x)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (!seen.has(position + x * 8 + 2 * me.t + e)) s[x][2 * low + e] = lowest();
    }
  }

  // Of rows g (low 0) and g + 8; the weights replace the scores.
  __device__ __forceinline__ void softmax(int low) {
    const float scale = a.scale * Cache::kFactor;
    float most = lowest(), added = 0.0f;
#pragma unroll
    for (int x = 0; x < kTile / 8; ++x) most = fmaxf(most, fmaxf(s[x][2 * low], s[x][2 * low + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    // The maximum is kept multiplied by the scale: 2^(top - top) is then exactly 1.
    const float now = fmaxf(top[low], most * scale), shift = now == lowest() ? 0.0f : now;
    const float fade = exp2_fast(top[low] - shift);
#pragma unroll
    for (int x = 0; x < kTile / 8; ++x)
#pragma unroll
      for (int e = 2 * low; e < 2 * low + 2; ++e) added += s[x][e] = exp2_fast(fmaf(s[x][e], scale, -shift));
    top[low] = now;
    sum[low] = sum[low] * fade + added;
#pragma unroll
    for (int x = 0; x < kOctets; ++x) out[x][2 * low] *= fade, out[x][2 * low + 1] *= fade;
  }

  __device__ __forceinline__ void multiply_values(const u8* tile) {
    const u32 row = shared_address(tile) + (me.lane & 15) * kRowBytes;
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      const float(&low)[4] = s[2 * k], (&high)[4] = s[2 * k + 1];
      const u32 p0 = pack(low[0], low[1]), p1 = pack(low[2], low[3]), p2 = pack(high[0], high[1]), p3 = pack(high[2], high[3]);
#pragma unroll
      for (int x = 0; x < kOctets; x += 2) {
        const uint4 v = load_matrices_transposed(row + 16 * k * kRowBytes + (((x + (me.lane >> 4)) ^ (me.lane & 7)) << 4));
        multiply_16x8x16(out[x], p0, p1, p2, p3, v.x, v.y);
        multiply_16x8x16(out[x + 1], p0, p1, p2, p3, v.z, v.w);
      }
    }
  }

  __device__ __forceinline__ void store() const {
    const int heads = a.kv_heads * a.group;
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      float total = sum[low];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const int t = warp_row() + 8 * low + me.g;
      const float f = t < count() && total != 0.0f ? Cache::kFactor / total : 0.0f;
      const int odd = me.t & 1;
      float* to = a.out + ((size_t)(b * a.tokens + t) * heads + query_head) * kDim + 8 * odd + 2 * (me.t & 2);
#pragma unroll
      for (int x = 0; x < kOctets; x += 2) {
        const float4 four = join_lanes<1>(make_float2(f * out[x][2 * low], f * out[x][2 * low + 1]),
                                          make_float2(f * out[x + 1][2 * low], f * out[x + 1][2 * low + 1]), odd);
        if (t < a.tokens) *reinterpret_cast<float4*>(to + 8 * x) = four;
      }
    }
  }

  __device__ __forceinline__ void compute(int tile, int slot) {
    multiply_keys(keys + slot * kTileBytes);
    mask(tile);
    softmax(0);
    softmax(1);
    multiply_values(values + slot * kTileBytes);
  }

  static __device__ __forceinline__ void copy(Copies& next, Walk<kTile>& ahead, const Tiles<kTile>& range, int slot) {
    next.copy(slot, slot);
    next.look(ahead, range);
  }

  // The next tile; of float8 the one whose codes are here, then copies the codes of the one after it.
  __device__ __forceinline__ void stage(Copies& next, Walk<kTile>& ahead, const Tiles<kTile>& range, int slot) const {
    if constexpr (kFloat8) {
      wait_copies<0>();
      expand(next, slot);
      slot = 0;
    }
    copy(next, ahead, range, slot);
  }

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int x = 0; x < kOctets; ++x) out[x][0] = out[x][1] = out[x][2] = out[x][3] = 0.0f;
    top[0] = top[1] = lowest(), sum[0] = sum[1] = 0.0f;
    const Tiles<kTile> range = tiles();
    Walk<kTile> walk(range, 0, first_row < count() ? 1 : 0), ahead = walk;
    if (walk.live()) {
      Copies next = copies();
      next.look(ahead, range);
      copy_queries();
      if constexpr (kFloat8) copy(next, ahead, range, 0);
      stage(next, ahead, range, 0);
      for (int slot = 0; walk.live(); walk.advance(range)) {
        if constexpr (!kFloat8) wait_copies<0>();
        __syncthreads();
        if constexpr (kStages == 2) stage(next, ahead, range, slot ^ 1);
        compute(walk.tile, slot);
        if constexpr (kStages == 2) {
          slot ^= 1;
        } else {
          __syncthreads();
          stage(next, ahead, range, 0);
        }
      }
    }
    store();
  }
};

// Blocks of later rows, which see most, start first.
template <int kDim, class Cache>
__device__ __forceinline__ void prefill(const AttendArgs& a) {
  extern __shared__ __align__(128) u8 shared[];
  const int heads = a.kv_heads * a.group, blocks = (a.tokens + kPrefillRows - 1) / kPrefillRows, id = blockIdx.x / heads;
  const int row = (blocks - 1 - id / a.batch) * kPrefillRows;
  PrefillBlock<kDim, Cache> block(a, shared, id % a.batch, blockIdx.x % heads, row);
  block.run();
}

}  // namespace onecat::paged_attention
