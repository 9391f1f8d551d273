// What a block needs of its rows before the recurrence: convolution with SiLU of its key head's and value head's channels,
// norms and gates. Rows are one stream: three of the window, then the new ones.
#pragma once
#include "gdn/state.cuh"

namespace onecat::gdn {

constexpr int kHistory = kGpuTaps - 1;
constexpr int kItemRows = 8;    // rows that a thread has at a time, of two neighbouring channels
constexpr int kHeadPairs = kGpuDim / 2;
constexpr float kNormEps = 1e-6f;
constexpr float kQueryScale = 0.08838834764831845f;  // Dk ** -0.5

// Where a block's channels lie, in pairs: k, v and q of its heads, one after the other.
struct Channels {
  int key_head, value_head, key_heads;

  __device__ __forceinline__ int pair(int i) const {
    const int part = i / kHeadPairs, at = i % kHeadPairs;
    if (part == 1) return (2 * key_heads + value_head) * kHeadPairs + at;
    return ((part == 0 ? key_heads : 0) + key_head) * kHeadPairs + at;
  }
};

struct Stream {
  const u32 *window, *rows;  // pairs of channels
  int window_stride, row_stride;
  int tokens;
  bool fresh;  // the window counts as zeros

  // Row i of the stream. One load without branches, so that many are under way at once.
  __device__ __forceinline__ u32 at(int i, int pair) const {
    const bool old = i < kHistory;
    const u32 x = (old ? window : rows)[old ? i * window_stride + pair : (i - kHistory) * row_stride + pair];
    return old && fresh ? 0u : x;
  }
};

// Rows first .. first + 7 of two channels, with the three rows before them.
struct Item {
  float2 tap[kGpuTaps];
  u32 x[kHistory + kItemRows];

  __device__ __forceinline__ void load_taps(const float* conv, int channels, int pair) {
#pragma unroll
    for (int j = 0; j < kGpuTaps; ++j) tap[j] = __ldg(reinterpret_cast<const float2*>(conv + j * channels) + pair);
  }
  __device__ __forceinline__ void load(const Stream& stream, int pair, int first) {
#pragma unroll
    for (int j = 0; j < kHistory + kItemRows; ++j) {
      x[j] = 0u;
      if (first + j < kHistory + stream.tokens) x[j] = stream.at(first + j, pair);
    }
  }
  __device__ __forceinline__ float2 row(int j) const {
    const float low[] = {tap[0].x, tap[1].x, tap[2].x, tap[3].x}, high[] = {tap[0].y, tap[1].y, tap[2].y, tap[3].y};
    const float2 a = unpack(x[j]), b = unpack(x[j + 1]), c = unpack(x[j + 2]), d = unpack(x[j + 3]);
    return make_float2(silu(convolve(low, a.x, b.x, c.x, d.x)), silu(convolve(high, a.y, b.y, c.y, d.y)));
  }
};

// A block's rows in shared memory.
struct Inputs {
  float *k, *v, *q;  // [T, 128] each
  float4* gates;     // [T] decay, rest, beta, q.k
  float* outputs;    // [T, 128]

  __device__ __forceinline__ Inputs(float* memory, int tokens, bool out) {
    k = memory, v = k + tokens * kGpuDim, q = v + tokens * kGpuDim;
    gates = reinterpret_cast<float4*>(q + (out ? tokens * kGpuDim : 0));
    outputs = reinterpret_cast<float*>(gates + tokens);
  }

  __device__ __forceinline__ void put(int item_pair, int row, float2 y) const {
    float* part = item_pair < kHeadPairs ? k : item_pair < 2 * kHeadPairs ? v : q;
    reinterpret_cast<float2*>(part + row * kGpuDim)[item_pair % kHeadPairs] = y;
  }
  __device__ __forceinline__ Token token(int row) const {
    const float4 g = gates[row];
    return {k + row * kGpuDim, q + row * kGpuDim, v + row * kGpuDim, g.x, g.y, g.z, g.w};
  }

  // Norms of a row's key and query, and their product, by one warp; the sums go side by side.
  template <bool kOut>
  __device__ __forceinline__ void normalise(int row, int lane) const {
    float4* const key = reinterpret_cast<float4*>(k + row * kGpuDim) + lane;
    float4* const query = reinterpret_cast<float4*>(q + row * kGpuDim) + lane;
    const float4 x = *key, y = kOut ? *query : x;
    float keys = dot(x, x), queries = dot(y, y), both = dot(x, y);
#pragma unroll
    for (int i = 16; i; i >>= 1) {
      keys = __fadd_rn(keys, __shfl_xor_sync(~0u, keys, i));
      if (!kOut) continue;
      queries = __fadd_rn(queries, __shfl_xor_sync(~0u, queries, i));
      both = __fadd_rn(both, __shfl_xor_sync(~0u, both, i));
    }
    const float factor = rsqrtf(__fadd_rn(keys, kNormEps));
    *key = scaled(x, factor);
    if (!kOut) return;
    const float query_factor = __fmul_rn(rsqrtf(__fadd_rn(queries, kNormEps)), kQueryScale);
    *query = scaled(y, query_factor);
    if (lane == 0) gates[row].w = __fmul_rn(__fmul_rn(both, query_factor), factor);
  }
};

// What a row's gates are made of, of one value head.
struct RawGates {
  float b, a, a_log, dt_bias;

  __device__ __forceinline__ float4 computed() const {
    const float g = log_decay(a, a_log, dt_bias), decay = expf(g);
    return make_float4(decay, Token::slow(decay) ? expm1f(g) : decay, sigmoid(b), 0.0f);
  }
};

}  // namespace onecat::gdn
