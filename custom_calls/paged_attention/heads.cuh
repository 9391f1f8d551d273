// Norm and rotary embedding of one head's row, and its place in the cache. A warp has the row, a lane D / 32 neighbours of it:
//   x * rsqrt(mean(x^2) + eps) * (1 + norm), then dim j < half pairs with j + half; all in float32, rounded to float16 once.
#pragma once
#include "paged_attention/elements.cuh"

namespace onecat::paged_attention {

template <int kDim>
struct HeadRow {
  static constexpr int kEach = kDim / 32;
  const int lane = threadIdx.x & 31;
  float x[kEach];

  __device__ __forceinline__ explicit HeadRow(const __half* row) {
    const Words<__half, kEach> words = reinterpret_cast<const Words<__half, kEach>*>(row)[lane];
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = __half2float(words.x[i]);
  }

  __device__ __forceinline__ void normalise(const float* norm, float eps) {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) total += x[i] * x[i];
#pragma unroll
    for (int i = 16; i; i >>= 1) total += __shfl_xor_sync(~0u, total, i);
    const float f = rsqrtf(total / kDim + eps);
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = x[i] * f * (1.0f + norm[lane * kEach + i]);
  }

  // half is a multiple of kEach.
  __device__ __forceinline__ void turn(const float* cos, const float* sin, int half) {
    const int span = half / kEach;  // lanes
    const bool second = lane >= span;
    const int partner = second ? lane - span : lane + span;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float other = __shfl_sync(~0u, x[i], partner & 31);
      if (lane >= 2 * span) continue;
      const int at = (second ? lane - span : lane) * kEach + i;
      x[i] = second ? x[i] * cos[at] + other * sin[at] : x[i] * cos[at] - other * sin[at];
    }
  }

  // To float16, and from there to the cache's type.
  __device__ __forceinline__ void store(Element to, void* base, size_t row, float factor) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = __half2float(__float2half_rn(x[i] * factor));
    store_as<kEach>(to, base, row * 32 + lane, x);
  }
  __device__ __forceinline__ void divide(float by) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] /= by;
  }
};

template <int kDim>
__device__ __forceinline__ void write_head(const HeadArgs& a) {
  const int all = a.heads + 2 * a.kv_heads;
  const long long id = (long long)blockIdx.x * (kWriteThreads / 32) + (threadIdx.x >> 5), token = id / all;
  if (token >= (long long)a.at.batch * a.at.tokens) return;
  const int head = static_cast<int>(id % all), kv = head - a.heads;
  const bool query = kv < 0, key = !query && kv < a.kv_heads;
  const int at = query ? head * a.q_stride : key ? a.k_at + kv * kDim : a.v_at + (kv - a.kv_heads) * kDim;
  HeadRow<kDim> row(static_cast<const __half*>(a.qkv) + token * a.width + at);
  if (query || key) {
    row.normalise(query ? a.q_norm : a.k_norm, a.eps);
    row.turn(a.cos + token * a.half, a.sin + token * a.half, a.half);
  }
  if (query) return row.store(kElementF16, a.q, token * a.heads + head, a.scales[0]);
  const long long to = place(a.at, static_cast<int>(token / a.at.tokens), static_cast<int>(token % a.at.tokens));
  if (to < 0) return;
  row.divide(a.scales[key ? 0 : 1]);
  row.store(a.to, key ? a.at.k_pages : a.at.v_pages, to * a.kv_heads + (key ? kv : kv - a.kv_heads), 1.0f);
}

}  // namespace onecat::paged_attention
