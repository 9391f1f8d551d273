// Decode, verify and draft rows, and prefill, on m8n8k4 (sm_70). One block of 8 warps takes some rows of one kv head and a run
// of splits (prefill: the only one, of which it takes what its rows see, and writes the result itself), and goes through tiles
// of 32 keys, which are read into registers one tile ahead and expanded to float16 on their way to shared memory:
//   keys:    a warp multiplies all rows by 16 keys over a quarter of D; the quarters meet in shared memory. Its four quad
//            pairs are 2 octets of rows x 2 octets of keys;
//   softmax: 8 lanes per row;
//   values:  a warp multiplies all rows' weights by an eighth of D; quad pairs are 2 octets of rows x 2 halves of the columns.
// What rows_m16n8k16.cuh says about tiles without visible keys and positions that no row sees holds here too.
#pragma once
#include "paged_attention/stage_m8n8k4.cuh"

namespace onecat::paged_attention {

constexpr int kPitch = kTile + 8;  // of rows of scores and weights

template <int kDim, int kBands, class Cache, bool kPrefill>
struct RowsBlock {
  static constexpr int kRows = 16 * kBands;
  static constexpr int kTurns = (kRows + 31) / 32;  // of softmax, 32 rows each
  static constexpr int kParts = kDim / 128;         // sums of a band: column octets of a quad pair
  static constexpr int kChunks = kDim / 8;          // of 16 bytes in a row
  static constexpr float kFactor = Cache::kFactor;

  const AttendArgs& a;
  const Lane me;
  const Work work;
  const Request request;
  const int first, last;  // positions of the block's rows
  const Tiles<kTile> tiles;
  u8 *queries, *keys, *values;
  float* scores;    // [4, kRows, kPitch]
  __half* weights;  // [kRows, kPitch]
  float* fades;     // [kRows]
  float out[kBands][kParts][8];
  float top[kTurns], sum[kTurns];
  Seen seen[kTurns];

  __device__ __forceinline__ RowsBlock(const AttendArgs& args, u8* shared)
      : a(args), work(args, kRows), request(args, work.b), first(request.start + work.first_row / args.group),
        last(request.start + min((work.first_row + kRows - 1) / args.group, args.tokens - 1)),
        tiles(kPrefill ? max(first - args.window + 1, 0) : request.first,
              kPrefill && args.causal ? min(last + 1, request.end) : request.end, args.splits) {
    queries = shared;
    keys = queries + kRows * kDim * 2;
    values = keys + kTile * kDim * 2;
    scores = reinterpret_cast<float*>(values + kTile * kDim * 2);
    weights = reinterpret_cast<__half*>(scores + 4 * kRows * kPitch);
    fades = reinterpret_cast<float*>(weights + kRows * kPitch);
  }

  __device__ __forceinline__ int softmax_row(int turn) const { return turn * 32 + me.warp * 4 + (me.lane >> 3); }

  __device__ __forceinline__ void load_queries() {
#pragma unroll
    for (int i = 0; i < kRows * kChunks / 256; ++i) {
      const int at = i * 256 + threadIdx.x, row = at / kChunks, chunk = at % kChunks;
      const __half* from = work.query(a, row, kDim);
      *reinterpret_cast<uint4*>(queries + row * kDim * 2 + ((chunk ^ (row & 7)) << 4)) =
          from ? reinterpret_cast<const uint4*>(from)[chunk] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) seen[i] = seen_by(a, request, (work.first_row + softmax_row(i)) / a.group);
  }

  __device__ __forceinline__ void restart() {
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int y = 0; y < kParts; ++y)
#pragma unroll
        for (int x = 0; x < 8; ++x) out[m][y][x] = 0.0f;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) top[i] = lowest(), sum[i] = 0.0f;
  }

  __device__ __forceinline__ void multiply_keys() {
    const int quarter = me.warp >> 1, first = (me.warp & 1) * 16 + me.columns * 8;
    const int key = first + me.quad, row = me.rows * 8 + me.quad;
    float s[kBands][8] = {};
#pragma unroll
    for (int c = 0; c < kChunks / 4; ++c) {
      const int chunk = quarter * (kChunks / 4) + c;
      const uint4 k = *reinterpret_cast<const uint4*>(keys + key * kDim * 2 + ((chunk ^ key_turn(key)) << 4));
#pragma unroll
      for (int m = 0; m < kBands; ++m) {
        const uint4 q = *reinterpret_cast<const uint4*>(queries + (m * 16 + row) * kDim * 2 + ((chunk ^ (row & 7)) << 4));
        multiply_by_columns(s[m], q.x, q.y, k.x, k.y);
        multiply_by_columns(s[m], q.z, q.w, k.z, k.w);
      }
    }
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int x = 0; x < 8; x += 2)
        *reinterpret_cast<float2*>(scores + (quarter * kRows + m * 16 + me.sum_row(x)) * kPitch + first + me.sum_column(x)) =
            make_float2(s[m][x], s[m][x + 1]);
  }

  // A lane has 4 neighbouring keys.
  __device__ __forceinline__ void softmax_row_of(int turn, int tile, bool whole) {
    const int row = softmax_row(turn), l = me.lane & 7;
    const float* from = scores + row * kPitch + 4 * l;
    float s[4] = {}, most = lowest(), added = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 x = *reinterpret_cast<const float4*>(from + i * kRows * kPitch);
      s[0] += x.x, s[1] += x.y, s[2] += x.z, s[3] += x.w;
    }
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      if (!whole && !seen[turn].has(tile * kTile + 4 * l + x)) s[x] = lowest();
      most = fmaxf(most, s[x]);
    }
#pragma unroll
    for (int x = 1; x < 8; x <<= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, x));
    const float scale = a.scale * kFactor;
    const float now = fmaxf(top[turn], most * scale), shift = now == lowest() ? 0.0f : now;
    const float fade = exp2_fast(top[turn] - shift);
#pragma unroll
    for (int x = 0; x < 4; ++x) s[x] = exp2_fast(fmaf(s[x], scale, -shift)), added += s[x];
    if (l == 0) fades[row] = fade;
    *reinterpret_cast<uint2*>(weights + row * kPitch + 4 * l) = make_uint2(pack(s[0], s[1]), pack(s[2], s[3]));
    top[turn] = now;
    sum[turn] = sum[turn] * fade + added;
  }

  __device__ __forceinline__ void softmax(int tile) {
    const bool whole = Tiles<kTile>::whole(a, request, tile, first, last);
#pragma unroll
    for (int i = 0; i < kTurns; ++i)
      if (i * 32 + me.warp * 4 < kRows) softmax_row_of(i, tile, whole);
  }

  // Operand B of 4 keys from `key` on, of each column octet.
  __device__ __forceinline__ void load_values(int key, u32 (&b)[kParts][2]) const {
    const int row = key + (me.lane & 3), chunk = (me.warp * 2 + me.columns) * kParts;
    const u8* from = values + row * kDim * 2;
    if constexpr (kParts == 2) {
      const uint4 x = *reinterpret_cast<const uint4*>(from + (((chunk + (me.upper >> 2)) ^ value_turn<kDim>(row)) << 4));
      b[0][0] = x.x, b[0][1] = x.y, b[1][0] = x.z, b[1][1] = x.w;
    } else {
      const uint2 x = *reinterpret_cast<const uint2*>(from + ((chunk ^ value_turn<kDim>(row)) << 4) + 2 * me.upper);
      b[0][0] = x.x, b[0][1] = x.y;
    }
  }

  __device__ __forceinline__ void fade_out() {
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int x = 0; x < 4; x += 2) {
        const float fade = fades[m * 16 + me.sum_row(x)];
#pragma unroll
        for (int y = 0; y < kParts; ++y) {
          out[m][y][x] *= fade, out[m][y][x + 1] *= fade;
          out[m][y][x + 4] *= fade, out[m][y][x + 5] *= fade;
        }
      }
  }

  __device__ __forceinline__ void multiply_values() {
    fade_out();
#pragma unroll
    for (int k = 0; k < kTile; k += 8) {
      u32 low[kParts][2], high[kParts][2];
      load_values(k, low);
      load_values(k + 4, high);
#pragma unroll
      for (int m = 0; m < kBands; ++m) {
        const uint4 p = *reinterpret_cast<const uint4*>(weights + (m * 16 + me.rows * 8 + me.quad) * kPitch + k);
#pragma unroll
        for (int y = 0; y < kParts; ++y) {
          multiply_by_rows(out[m][y], p.x, p.y, low[y][0], low[y][1]);
          multiply_by_rows(out[m][y], p.z, p.w, high[y][0], high[y][1]);
        }
      }
    }
  }

  // ---- results

  __device__ __forceinline__ float total_of(int turn) const {
    float total = sum[turn];
#pragma unroll
    for (int x = 1; x < 8; x <<= 1) total += __shfl_xor_sync(~0u, total, x);
    return total;
  }

  // A row's columns of this warp, times a factor; all lanes together.
  __device__ __forceinline__ void store_pair(float* row, int m, int x, float f, bool real) const {
    const int second = (me.lane >> 1) & 1;
    float* to = row + me.warp * (kDim / 8) + me.columns * 8 * kParts + kParts * (x & 4);
    const float2 a = make_float2(f * out[m][0][x], f * out[m][0][x + 1]);
    if constexpr (kParts == 2) {
      const float4 four = join_lanes<2>(a, make_float2(f * out[m][1][x], f * out[m][1][x + 1]), second);
      if (real) reinterpret_cast<float4*>(to)[second] = four;
    } else if (real) {
      reinterpret_cast<float2*>(to)[second] = a;
    }
  }

  // Of a split.
  __device__ __forceinline__ void finish(int split) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const float total = total_of(i);
      const int row = softmax_row(i);
      if (row < kRows && !(me.lane & 7))
        reinterpret_cast<float2*>(a.sums)[work.partial_row(a, split) + row] = make_float2(top[i], total);
    }
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int x = 0; x < 8; x += 2) {
        const int row = m * 16 + me.sum_row(x);
        store_pair(a.partial + (work.partial_row(a, split) + row) * kDim, m, x, kFactor,
                   work.first_row + row < a.tokens * a.group);
      }
    restart();
  }

  // Of all keys; also of blocks without any.
  __device__ __forceinline__ void write_result() {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const float total = total_of(i);
      const int row = softmax_row(i), t = (work.first_row + row) / a.group;
      if (row < kRows && !(me.lane & 7)) fades[row] = t < request.end - request.start && total != 0.0f ? kFactor / total : 0.0f;
    }
    __syncthreads();
    const int heads = a.kv_heads * a.group;
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int x = 0; x < 8; x += 2) {
        const int row = m * 16 + me.sum_row(x), at = work.first_row + row, t = at / a.group;
        float* to = a.out + ((size_t)(work.b * a.tokens + t) * heads + work.head * a.group + at % a.group) * kDim;
        store_pair(to, m, x, fades[row], t < a.tokens);
      }
  }

  __device__ __forceinline__ void run() {
    Walk<kTile> walk(tiles, work.from, kPrefill && first >= request.end ? work.from : work.to), ahead = walk;
    restart();
    if (!walk.live()) return kPrefill ? write_result() : void();
    Stage<kDim, Cache> stage(a, request, work, me);
    stage.look(ahead, tiles);
    stage.read();
    stage.look(ahead, tiles);
    load_queries();
    while (true) {
      __syncthreads();
      stage.write(keys, values);
      __syncthreads();
      stage.read();
      stage.look(ahead, tiles);
      multiply_keys();
      __syncthreads();
      softmax(walk.tile);
      __syncthreads();
      multiply_values();
      const int split = walk.split;
      walk.advance(tiles);
      if (!kPrefill && walk.split != split) finish(split);
      if (!walk.live()) break;
    }
    if (kPrefill) write_result();
  }
};

template <int kDim, int kBands, class Cache>
__device__ __forceinline__ void attend_rows(const AttendArgs& a) {
  extern __shared__ __align__(128) u8 shared[];
  RowsBlock<kDim, kBands, Cache, false> block(a, shared);
  block.run();
}

template <int kDim, class Cache>
__device__ __forceinline__ void prefill(const AttendArgs& a) {
  extern __shared__ __align__(128) u8 shared[];
  RowsBlock<kDim, kDim == 256 ? 3 : 2, Cache, true> block(a, shared);
  block.run();
}

}  // namespace onecat::paged_attention
