// Decode, verify and draft rows on m16n8k16 (sm_80 and later). One block of 8 warps takes some rows of one kv head and a run
// of splits, and goes through tiles of 64 keys:
//   keys:    a warp multiplies all rows by 16 keys over half of D; its part of Q stays in registers; the halves meet in
//            shared memory;
//   softmax: 4 or 8 lanes per row;
//   values:  a warp multiplies all rows' weights by an eighth of D.
// So each element is read from shared memory, and expanded, once per block. Two barriers per tile: {keys of the next tile,
// values of this one} | {softmax of the next tile}. Tiles are copied ahead, across the borders of splits.
//
// Inside the key product D is permuted so that one 16-byte chunk of a lane feeds two (float16) or four (float8) instructions;
// Q is too.
//
// A tile without visible keys is an exact no-op for a row (the maximum stays, the factor is 2^0, all weights are 0), and
// positions that no row sees are staged as zeros: what lies there must not meet a weight of 0.
#pragma once
#include "paged_attention/stage_m16n8k16.cuh"

namespace onecat::paged_attention {

constexpr int kPitch = kTile + 8;  // of rows of scores and weights

template <int kDim, int kBands, class Cache>
struct RowsBlock {
  using Copies = Stage<kDim, Cache>;
  static constexpr int kRows = 16 * kBands;
  static constexpr bool kFloat8 = Cache::kBytes == 1;
  static constexpr int kRing = (__CUDA_ARCH__ >= 900 ? kAheadSm90 : kAheadSm80) * (kFloat8 ? 2 : 1);
  static constexpr int kRowBytes = Copies::kRowBytes, kTileBytes = Copies::kTileBytes;
  static constexpr int kSteps = kDim / 32;             // instructions over half of D
  static constexpr int kPerChunk = kFloat8 ? 4 : 2;    // instructions that one chunk feeds
  static constexpr int kOctets = kDim / kWarps / 8;    // of a warp's value columns
  static constexpr int kLanes = kRows > 32 ? 4 : 8;    // of a row in softmax
  static constexpr int kAtOnce = 32 / kLanes * kWarps; // rows
  static constexpr int kTurns = (kRows + kAtOnce - 1) / kAtOnce;
  static constexpr int kQuads = kTile / 4 / kLanes;    // groups of 4 neighbouring keys that a lane has
  static constexpr int kSums = 8 / kLanes;             // so that 4 and 8 lanes add in the same order

  const AttendArgs& a;
  const Lane me;
  const Work work;
  const Request request;
  const Tiles<kTile> tiles;
  u8 *keys, *values;
  float* scores;    // [2, kRows, kPitch]
  __half* weights;  // [kRows, kPitch]
  float* fades;     // [kRows]
  u32 q[kBands][kSteps][4];
  float out[kBands][kOctets][4];
  float top[kTurns], sum[kTurns][kSums];
  Seen seen[kTurns];

  __device__ __forceinline__ RowsBlock(const AttendArgs& args, u8* shared)
      : a(args), work(args, kRows), request(args, work.b), tiles(request.first, request.end, args.splits) {
    keys = shared;
    values = keys + kRing * kTileBytes;
    scores = reinterpret_cast<float*>(values + (kRing + 1) * kTileBytes);
    weights = reinterpret_cast<__half*>(scores + 2 * kRows * kPitch);
    fades = reinterpret_cast<float*>(weights + kRows * kPitch);
  }

  __device__ __forceinline__ int half() const { return me.warp >> 2; }     // of D, in the key product
  __device__ __forceinline__ int column() const { return me.warp & 3; }    // of 16 keys
  __device__ __forceinline__ int softmax_row(int turn) const {
    return (turn * kWarps + me.warp) * (32 / kLanes) + me.lane / kLanes;
  }

  __device__ __forceinline__ void load_queries() {
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        const __half* row = work.query(a, m * 16 + low * 8 + me.g, kDim);
#pragma unroll
        for (int c = 0; c < kSteps / 2; ++c) {
          const int chunk = half() * (kDim / 16) + (kFloat8 ? (c >> 1) * 8 + 2 * me.t + (c & 1) : c * 4 + me.t);
          const uint4 x = row ? reinterpret_cast<const uint4*>(row)[chunk] : make_uint4(0, 0, 0, 0);
          q[m][2 * c][low] = x.x, q[m][2 * c][low + 2] = x.y;
          q[m][2 * c + 1][low] = x.z, q[m][2 * c + 1][low + 2] = x.w;
        }
      }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) seen[i] = seen_by(a, request, (work.first_row + softmax_row(i)) / a.group);
  }

  __device__ __forceinline__ void restart() {
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int j = 0; j < kOctets; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[m][j][e] = 0.0f;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      top[i] = lowest();
#pragma unroll
      for (int x = 0; x < kSums; ++x) sum[i][x] = 0.0f;
    }
  }

  // The keys' chunk of step `c` for octet n of this warp's 16 keys, as the words of its instructions.
  __device__ __forceinline__ void load_keys(const u8* tile, int c, int n, u32 (&words)[4]) const {
    const int row = column() * 16 + n * 8 + me.g, chunk = half() * (Copies::kChunks / 2) + 4 * c + me.t;
    const uint4 x = *reinterpret_cast<const uint4*>(tile + row * kRowBytes + ((chunk ^ ((row & 1) << 2)) << 4));
    words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
  }

  // Operand B of instruction x that a chunk feeds.
  static __device__ __forceinline__ void key_operand(const u32 (&words)[4], int x, u32& b0, u32& b1) {
    if constexpr (kFloat8) {
      b0 = Cache::template pair<0>(words[x]);
      b1 = Cache::template pair<2>(words[x]);
    } else {
      b0 = words[2 * x % 4];
      b1 = words[(2 * x + 1) % 4];
    }
  }

  __device__ __forceinline__ void multiply_keys(int slot) {
    const u8* tile = keys + slot * kTileBytes;
    float s[kBands][2][4] = {};
#pragma unroll
    for (int c = 0; c < kSteps / kPerChunk; ++c) {
      u32 words[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) load_keys(tile, c, n, words[n]);
#pragma unroll
      for (int x = 0; x < kPerChunk; ++x)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          u32 b0, b1;
          key_operand(words[n], x, b0, b1);
#pragma unroll
          for (int m = 0; m < kBands; ++m) {
            const u32(&p)[4] = q[m][c * kPerChunk + x];
            multiply_16x8x16(s[m][n], p[0], p[1], p[2], p[3], b0, b1);
          }
        }
    }
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float* to = scores + (half() * kRows + m * 16 + me.g) * kPitch + column() * 16 + n * 8 + 2 * me.t;
        *reinterpret_cast<float2*>(to) = make_float2(s[m][n][0], s[m][n][1]);
        *reinterpret_cast<float2*>(to + 8 * kPitch) = make_float2(s[m][n][2], s[m][n][3]);
      }
  }

  // A lane has the groups of 4 keys l, l + kLanes, ... of the tile.
  __device__ __forceinline__ void load_scores(int row, int l, float (&s)[4 * kQuads]) const {
    const float* from = scores + row * kPitch + 4 * l;
#pragma unroll
    for (int x = 0; x < kQuads; ++x) {
      const float4 u = *reinterpret_cast<const float4*>(from + 4 * kLanes * x);
      const float4 v = *reinterpret_cast<const float4*>(from + kRows * kPitch + 4 * kLanes * x);
      s[4 * x] = u.x + v.x, s[4 * x + 1] = u.y + v.y, s[4 * x + 2] = u.z + v.z, s[4 * x + 3] = u.w + v.w;
    }
  }

  __device__ __forceinline__ void softmax_row_of(int turn, int tile, bool whole) {
    const int row = softmax_row(turn), l = me.lane & (kLanes - 1);
    float s[4 * kQuads], most = lowest(), added[kSums] = {};
    load_scores(row, l, s);
    if (!whole) {
#pragma unroll
      for (int x = 0; x < 4 * kQuads; ++x)
        if (!seen[turn].has(tile * kTile + (x >> 2) * 4 * kLanes + 4 * l + (x & 3))) s[x] = lowest();
    }
#pragma unroll
    for (int x = 0; x < 4 * kQuads; ++x) most = fmaxf(most, s[x]);
#pragma unroll
    for (int x = 1; x < kLanes; x <<= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, x));
    // The maximum is kept multiplied by the scale: 2^(top - top) is then exactly 1.
    const float scale = a.scale * Cache::kFactor;
    const float now = fmaxf(top[turn], most * scale), shift = now == lowest() ? 0.0f : now;
    const float fade = exp2_fast(top[turn] - shift);
#pragma unroll
    for (int x = 0; x < 4 * kQuads; ++x) {
      s[x] = exp2_fast(fmaf(s[x], scale, -shift));
      added[(x >> 2) % kSums] += s[x];
    }
    if (l == 0) fades[row] = fade;
#pragma unroll
    for (int x = 0; x < kQuads; ++x)
      *reinterpret_cast<uint2*>(weights + row * kPitch + 4 * l + 4 * kLanes * x) =
          make_uint2(pack(s[4 * x], s[4 * x + 1]), pack(s[4 * x + 2], s[4 * x + 3]));
    top[turn] = now;
#pragma unroll
    for (int x = 0; x < kSums; ++x) sum[turn][x] = sum[turn][x] * fade + added[x];
  }

  __device__ __forceinline__ void softmax(int tile) {
    const bool whole = Tiles<kTile>::whole(a, request, tile, request.start, request.end - 1);
#pragma unroll
    for (int i = 0; i < kTurns; ++i)
      if (i * kAtOnce + me.warp * (32 / kLanes) < kRows) softmax_row_of(i, tile, whole);
  }

  // Operand B of 16 keys from 16 k on, for the octets of this warp's columns.
  __device__ __forceinline__ void load_values(const u8* tile, int k, u32 (&b)[kOctets][2]) const {
    if constexpr (kFloat8) {
      u32 x[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const u8* row = tile + (16 * k + 2 * me.t + (e & 1) + 8 * (e >> 1)) * kRowBytes;
        const int turn = (2 * me.t + (e & 1)) & 7;
        if constexpr (kOctets == 4)
          x[e] = *reinterpret_cast<const u32*>(row + (((2 * me.warp + (me.g >> 2)) ^ turn) << 4) + (me.g & 3) * 4);
        else
          x[e] = *reinterpret_cast<const unsigned short*>(row + ((me.warp ^ turn) << 4) + me.g * 2);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        b[0][e] = Cache::template cross<0>(x[2 * e], x[2 * e + 1]);
        b[1][e] = Cache::template cross<1>(x[2 * e], x[2 * e + 1]);
        if constexpr (kOctets == 4) {
          b[2][e] = Cache::template cross<2>(x[2 * e], x[2 * e + 1]);
          b[3][e] = Cache::template cross<3>(x[2 * e], x[2 * e + 1]);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kOctets; j += 2) {
        const int row = 16 * k + (me.lane & 15), chunk = me.warp * kOctets + j + (me.lane >> 4);
        const uint4 x = load_matrices_transposed(shared_address(tile) + row * kRowBytes + ((chunk ^ (row & 7)) << 4));
        b[j][0] = x.x, b[j][1] = x.y, b[j + 1][0] = x.z, b[j + 1][1] = x.w;
      }
    }
  }

  __device__ __forceinline__ void multiply_values(int slot) {
    const u8* tile = values + slot * kTileBytes;
    const u32 row = shared_address(weights) + ((me.lane & 15) * kPitch + (me.lane >> 4) * 8) * 2;
#pragma unroll
    for (int m = 0; m < kBands; ++m) {
      const float low = fades[m * 16 + me.g], high = fades[m * 16 + 8 + me.g];
#pragma unroll
      for (int j = 0; j < kOctets; ++j) out[m][j][0] *= low, out[m][j][1] *= low, out[m][j][2] *= high, out[m][j][3] *= high;
    }
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      u32 b[kOctets][2];
      load_values(tile, k, b);
#pragma unroll
      for (int m = 0; m < kBands; ++m) {
        const uint4 p = load_matrices(row + (m * 16 * kPitch + 16 * k) * 2);
#pragma unroll
        for (int j = 0; j < kOctets; ++j) multiply_16x8x16(out[m][j], p.x, p.y, p.z, p.w, b[j][0], b[j][1]);
      }
    }
  }

  // ---- results of a split

  __device__ __forceinline__ void store_sums(int split) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
#pragma unroll
      for (int x = 1; x < 4; x <<= 1)
#pragma unroll
        for (int y = 0; y < kSums; ++y) sum[i][y] += __shfl_xor_sync(~0u, sum[i][y], x);
      const float total = kSums == 2 ? sum[i][0] + sum[i][kSums - 1] : sum[i][0] + __shfl_xor_sync(~0u, sum[i][0], 4);
      const int row = softmax_row(i);
      if (row < kRows && !(me.lane & (kLanes - 1)))
        reinterpret_cast<float2*>(a.sums)[work.partial_row(a, split) + row] = make_float2(top[i], total);
    }
  }

  // Columns of this warp's band of rows g or g + 8, all lanes together. Float8 octets hold every second or fourth column, see
  // load_values, so a lane has 8 or 4 neighbours; of those 8, lanes exchange halves.
  __device__ __forceinline__ void store_row(float* to, const float (&x)[kOctets][4], int low, bool real) const {
    constexpr float f = Cache::kFactor;
    const int e = 2 * low, odd = me.t & 1;
    if constexpr (kFloat8 && kOctets == 4) {
      const float4 a = make_float4(f * x[0][e], f * x[1][e], f * x[2][e], f * x[3][e]);
      const float4 b = make_float4(f * x[0][e + 1], f * x[1][e + 1], f * x[2][e + 1], f * x[3][e + 1]);
      const float4 from = odd ? a : b;
      const float4 other = make_float4(__shfl_xor_sync(~0u, from.x, 1), __shfl_xor_sync(~0u, from.y, 1),
                                       __shfl_xor_sync(~0u, from.z, 1), __shfl_xor_sync(~0u, from.w, 1));
      float4* at = reinterpret_cast<float4*>(to) + 2 * (me.t & 2) + odd;
      if (real) at[0] = odd ? other : a, at[2] = odd ? b : other;
    } else if constexpr (kFloat8) {
      if (real) reinterpret_cast<float4*>(to)[me.t] = make_float4(f * x[0][e], f * x[1][e], f * x[0][e + 1], f * x[1][e + 1]);
    } else {
#pragma unroll
      for (int j = 0; j < kOctets; j += 2) {
        const float4 four = join_lanes<1>(make_float2(x[j][e], x[j][e + 1]), make_float2(x[j + 1][e], x[j + 1][e + 1]), odd);
        if (real) *reinterpret_cast<float4*>(to + 8 * (j + odd) + 2 * (me.t & 2)) = four;
      }
    }
  }

  __device__ __forceinline__ void finish(int split) {
    store_sums(split);
    const int g = computed_here(me.g);
    float* to = a.partial + work.partial_row(a, split) * kDim + me.warp * (kDim / kWarps);
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        const int row = m * 16 + low * 8 + g;
        store_row(to + row * kDim, out[m], low, work.first_row + row < a.tokens * a.group);
      }
    restart();
  }

  __device__ __forceinline__ void run() {
    Walk<kTile> walk(tiles, work.from, work.to);
    if (!walk.live()) return;
    Copies copies(a, request, work, me, shared_address(keys), shared_address(values));
    Walk<kTile> ahead = walk;
#pragma unroll
    for (int i = 0; i < kRing; ++i) {
      copies.look(ahead, tiles);
      copies.copy(i, i);
    }
    copies.look(ahead, tiles);
    load_queries();
    restart();
    wait_copies<kRing - 1>();
    __syncthreads();
    multiply_keys(0);
    __syncthreads();
    copies.copy(0, kRing);
    copies.look(ahead, tiles);
    softmax(walk.tile);
    for (int key_slot = 1 % kRing, value_slot = 0;;) {
      Walk<kTile> next = walk;
      next.advance(tiles);
      wait_copies<kRing - 1>();
      __syncthreads();
      if (next.live()) multiply_keys(key_slot);
      multiply_values(value_slot);
      if (next.split != walk.split) finish(walk.split);
      if (!next.live()) break;
      __syncthreads();
      copies.copy(key_slot, value_slot);
      copies.look(ahead, tiles);
      softmax(next.tile);
      key_slot = key_slot + 1 == kRing ? 0 : key_slot + 1;
      value_slot = value_slot == kRing ? 0 : value_slot + 1;
      walk = next;
    }
  }
};

template <int kDim, int kBands, class Cache>
__device__ __forceinline__ void attend_rows(const AttendArgs& a) {
  extern __shared__ __align__(128) u8 shared[];
  RowsBlock<kDim, kBands, Cache> block(a, shared);
  block.run();
}

}  // namespace onecat::paged_attention
