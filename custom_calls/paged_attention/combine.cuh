// Puts the splits of each output row together in a fixed order: one block of D threads per (request, token, query head), four
// groups of which add every fourth split; then the groups are added in order.
#pragma once
#include "paged_attention/request.cuh"

namespace onecat::paged_attention {

constexpr int kGroups = 4;                              // of threads
constexpr int kWords = (kMaxSplits + 31) / 32;          // of 32 splits
constexpr int kPerWord = 32 / kGroups;                  // splits of a word that a group adds

template <int kTile>
struct RowSplits {
  const Tiles<kTile> tiles;
  const int lane;
  size_t row;       // of split 0 among the partial results
  size_t stride;    // from split to split
  float weight[kWords];
  float total = 0.0f;

  __device__ __forceinline__ RowSplits(const AttendArgs& a, const Request& r, size_t first)
      : tiles(r.first, r.end, a.splits), lane(threadIdx.x & 31), row(first), stride(a.rows) {}

  __device__ __forceinline__ bool live(int split) const { return split < tiles.splits && tiles.any_of(split); }

  // Lane l gets the weights of splits l, l + 32, ...; every warp does the same.
  __device__ __forceinline__ void weigh(const AttendArgs& a) {
    float sum[kWords], most = __int_as_float(0xff800000);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int split = 32 * i + lane;
      float2 x = make_float2(__int_as_float(0xff800000), 0.0f);
      if (live(split)) x = reinterpret_cast<const float2*>(a.sums)[row + split * stride];
      weight[i] = x.x;
      sum[i] = x.y;
      most = fmaxf(most, x.x);
    }
#pragma unroll
    for (int x = 1; x < 32; x <<= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, x));
    if (most == __int_as_float(0xff800000)) most = 0.0f;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      weight[i] = exp2_fast(weight[i] - most);
      total += sum[i] * weight[i];
    }
#pragma unroll
    for (int x = 1; x < 32; x <<= 1) total += __shfl_xor_sync(~0u, total, x);
  }
};

// The group's splits of one word, four columns of each.
template <int kDim, int kTile>
struct Columns {
  float4 x[kPerWord];

  __device__ __forceinline__ void load(const AttendArgs& a, const RowSplits<kTile>& splits, int word, int group, int column) {
#pragma unroll
    for (int j = 0; j < kPerWord; ++j) {
      const int split = 32 * word + kGroups * j + group;
      if (splits.live(split))
        x[j] = *reinterpret_cast<const float4*>(a.partial + (splits.row + split * splits.stride) * kDim + 4 * column);
    }
  }
  // A split of weight 0 is skipped, so what was never written isn't used.
  __device__ __forceinline__ void add_to(float4& to, float weights, int group) const {
#pragma unroll
    for (int j = 0; j < kPerWord; ++j) {
      const float f = __shfl_sync(~0u, weights, kGroups * j + group);
      if (f != 0.0f) to.x += f * x[j].x, to.y += f * x[j].y, to.z += f * x[j].z, to.w += f * x[j].w;
    }
  }
};

template <int kDim, int kTile>
__device__ __forceinline__ void combine(const AttendArgs& a) {
  __shared__ float4 parts[kGroups][kDim / 4];
  const int heads = a.kv_heads * a.group, id = blockIdx.x, query_head = id % heads, t = id / heads % a.tokens;
  const int b = id / heads / a.tokens, group = threadIdx.x / (kDim / 4), column = threadIdx.x % (kDim / 4);
  const Request request(a, b);
  float4 sum = make_float4(0, 0, 0, 0);
  if (t < request.end - request.start) {
    const size_t head = (size_t)(b * a.kv_heads + query_head / a.group) * a.splits * a.rows;
    RowSplits<kTile> splits(a, request, head + t * a.group + query_head % a.group);
    Columns<kDim, kTile> columns;
    columns.load(a, splits, 0, group, column);
    splits.weigh(a);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (32 * i >= a.splits) break;
      if (i) columns.load(a, splits, i, group, column);
      columns.add_to(sum, splits.weight[i], group);
    }
    const float f = splits.total == 0.0f ? 0.0f : 1.0f / splits.total;
    sum.x *= f, sum.y *= f, sum.z *= f, sum.w *= f;
  }
  parts[group][column] = sum;
  __syncthreads();
  if (group) return;
#pragma unroll
  for (int i = 1; i < kGroups; ++i) {
    const float4 x = parts[i][column];
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
  }
  reinterpret_cast<float4*>(a.out)[(size_t)id * (kDim / 4) + column] = sum;
}

}  // namespace onecat::paged_attention
