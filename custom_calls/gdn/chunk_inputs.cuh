// All that a chunk of one key head needs that doesn't depend on the state: convolution, norms, gates, and for each of its value
// heads, up to three in a block,
//
//   P = Q K^T o D,  T = (I + A)^-1 with A = beta K K^T o D below the diagonal,  D[i, j] = exp(g[j + 1] + ... + g[i])
//
// Sums of log decays are float64, so that a small one behind a very strong one isn't lost. T comes from forward substitution,
// one thread per column. Rows that aren't real have zero keys, queries, values and g: they leave the state alone.
#pragma once
#include "gdn/chunk_request.cuh"

namespace onecat::gdn {

constexpr int kWidePitch = kGpuDim + 8;    // of tiles [64, 128]: no bank conflicts
constexpr int kSquarePitch = kChunk + 8;   // of tiles [64, 64]
constexpr int kSystemPitch = kChunk + 4;   // of float32 ones

// How values are kept between the kernels.
template <int kTerms>
struct ValueOf {
  using type = float;
  using pair = float2;
};
template <>
struct ValueOf<1> {
  using type = __half;
  using pair = u32;
};
__device__ __forceinline__ float2 widened(const float2& pair) { return pair; }
__device__ __forceinline__ float2 widened(u32 pair) { return unpack(pair); }

template <int kTerms>
class ChunkInputs {
 public:
  __device__ __forceinline__ ChunkInputs(const ChunkArgs& a, unsigned char* memory)
      : request_(a, blockIdx.z), a_(a), chunk_(blockIdx.y) {
    const int each = request_.per_key(), groups = (each + kSolvedHeads - 1) / kSolvedHeads;
    head_ = blockIdx.x / groups;
    const int first = blockIdx.x % groups * kSolvedHeads;
    first_value_ = head_ * each + first, heads_ = min(kSolvedHeads, each - first);
    keys_ = reinterpret_cast<__half*>(memory), queries_ = keys_ + kTerms * kWide;
    systems_ = reinterpret_cast<float*>(memory);  // in the place of keys and queries
    constexpr int kTiles = 2 * kTerms * kWide * sizeof(__half), kSystems = kSolvedHeads * kSystem * sizeof(float);
    sums_ = reinterpret_cast<float2*>(memory + (kTiles > kSystems ? kTiles : kSystems));
    betas_ = reinterpret_cast<float*>(sums_ + kSolvedHeads * kChunk);
  }

  __device__ __forceinline__ void run() {
    if (chunk_ >= request_.chunks()) return;
#pragma unroll 1
    for (int part = 0; part < 2 + heads_; ++part) convolve(part);
    const int warp = threadIdx.x >> 5, h = threadIdx.x / kChunk;
    if (warp < heads_) gates(warp);
    __syncthreads();
    float same[2][8] = {}, mixed[2][8] = {};
    const Operand k{keys_, kWidePitch, kWide}, q{queries_, kWidePitch, kWide};
    const Operand columns = k.moved(first_column() * kWidePitch);
    product<kTerms, 8, 2, kStraight, kTransposed, 2>(same, k.moved(first_row() * kWidePitch), columns);
    product<kTerms, 8, 2, kStraight, kTransposed, 2>(mixed, q.moved(first_row() * kWidePitch), columns);
    __syncthreads();  // keys and queries have been read
#pragma unroll
    for (int each = 0; each < kSolvedHeads; ++each)
      if (each < heads_) systems(same, mixed, each);
    __syncthreads();
    if (h < heads_) solve(h, threadIdx.x % kChunk);
  }

 private:
  static constexpr int kWide = kChunk * kWidePitch, kSystem = kChunk * kSystemPitch, kRows = 8;  // rows of a warp
  const Request request_;
  const ChunkArgs& a_;
  const int chunk_;
  int head_, first_value_, heads_;
  __half *keys_, *queries_;
  float* systems_;
  float2* sums_;  // [3, 64] of log decays, as sums of two
  float* betas_;  // [3, 64]

  __device__ __forceinline__ static int first_row() { return (threadIdx.x >> 6) * 16; }
  __device__ __forceinline__ static int first_column() { return (threadIdx.x >> 5 & 1) * 32; }
  __device__ __forceinline__ int value_head(int h) const { return first_value_ + h; }

  // Part 0 are queries, 1 keys, then the value heads. A warp has 8 rows, a lane 4 channels.
  __device__ __forceinline__ void convolve(int part) {
    const int lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * kRows;
    const int head = part == 0 ? head_ : part == 1 ? a_.key_heads + head_ : 2 * a_.key_heads + value_head(part - 2);
    const int channel = head * kGpuDim + lane * 4;
    float4 tap[kGpuTaps];
    const float* conv = a_.conv + static_cast<size_t>(request_.layer) * kGpuTaps * a_.channels + channel;
#pragma unroll
    for (int j = 0; j < kGpuTaps; ++j) tap[j] = __ldg(reinterpret_cast<const float4*>(conv + j * a_.channels));
    uint2 x[kRows + kHistory];
#pragma unroll
    for (int j = 0; j < kRows + kHistory; ++j) x[j] = request_.row<uint2>(chunk_ * kChunk + first + j - kHistory, channel);
    float4 y[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool real = chunk_ * kChunk + first + r < request_.tokens;
      y[r] = real ? row(tap, x[r], x[r + 1], x[r + 2], x[r + 3]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (part < 2) put_units(part == 1, first, lane, y);
    else put_values(part - 2, first, lane, y);
  }
  __device__ __forceinline__ static float4 row(const float4 (&tap)[4], uint2 a, uint2 b, uint2 c, uint2 d) {
    const float2 a0 = unpack(a.x), b0 = unpack(b.x), c0 = unpack(c.x), d0 = unpack(d.x);
    const float2 a1 = unpack(a.y), b1 = unpack(b.y), c1 = unpack(c.y), d1 = unpack(d.y);
    return make_float4(one(tap[0].x, tap[1].x, tap[2].x, tap[3].x, a0.x, b0.x, c0.x, d0.x),
                       one(tap[0].y, tap[1].y, tap[2].y, tap[3].y, a0.y, b0.y, c0.y, d0.y),
                       one(tap[0].z, tap[1].z, tap[2].z, tap[3].z, a1.x, b1.x, c1.x, d1.x),
                       one(tap[0].w, tap[1].w, tap[2].w, tap[3].w, a1.y, b1.y, c1.y, d1.y));
  }
  __device__ __forceinline__ static float one(float t0, float t1, float t2, float t3, float a, float b, float c, float d) {
    const float tap[] = {t0, t1, t2, t3};
    return silu(onecat::gdn::convolve(tap, a, b, c, d));
  }

  __device__ __forceinline__ void put_units(bool key, int first, int lane, const float4 (&y)[kRows]) {
    float sum[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = warp_sum(dot(y[r], y[r]));
    constexpr int kKept = kTerms * kChunk * kGpuDim;
    __half* tile = (key ? keys_ : queries_) + first * kWidePitch + lane * 4;
    __half* kept = request_.of_chunk<__half>(key ? a_.keys : a_.queries, chunk_, a_.key_heads, head_, kKept);
    kept += first * kGpuDim + lane * 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 unit = scaled(y[r], rsqrtf(__fadd_rn(sum[r], kNormEps)));
      uint2 one, two;
      split(unit.x, unit.y, &one.x, &two.x);
      split(unit.z, unit.w, &one.y, &two.y);
      *reinterpret_cast<uint2*>(tile + r * kWidePitch) = one, *reinterpret_cast<uint2*>(kept + r * kGpuDim) = one;
      if (kTerms == 1) continue;
      *reinterpret_cast<uint2*>(tile + r * kWidePitch + kWide) = two;
      *reinterpret_cast<uint2*>(kept + r * kGpuDim + kChunk * kGpuDim) = two;
    }
  }
  __device__ __forceinline__ void put_values(int h, int first, int lane, const float4 (&y)[kRows]) {
    using Value = typename ValueOf<kTerms>::type;
    Value* to = request_.of_chunk<Value>(a_.values, chunk_, a_.value_heads, value_head(h), kChunk * kGpuDim);
    to += first * kGpuDim + lane * 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) store(to + r * kGpuDim, y[r]);
  }
  __device__ __forceinline__ static void store(float* to, const float4& y) { *reinterpret_cast<float4*>(to) = y; }
  __device__ __forceinline__ static void store(__half* to, const float4& y) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack(y.x, y.y), pack(y.z, y.w));
  }

  // A value head's gates, by one warp: a lane has two rows.
  __device__ __forceinline__ void gates(int h) {
    const int lane = threadIdx.x & 31, head = value_head(h);
    double g[2];
    float beta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = chunk_ * kChunk + 2 * lane + i, at = request_.layer * a_.value_heads + head;
      const bool real = row < request_.tokens;
      const size_t token = static_cast<size_t>(request_.b) * a_.tokens + (real ? row : 0);
      const float* from = a_.gates + token * 2 * a_.value_heads + head;
      g[i] = real ? log_decay(from[a_.value_heads], a_.a_log[at], a_.dt_bias[at]) : 0.0f;
      beta[i] = real ? sigmoid(from[0]) : 0.0f;
    }
    double sum = g[0] + g[1];
#pragma unroll
    for (int i = 1; i < 32; i <<= 1) {
      const double before = __shfl_up_sync(~0u, sum, i);
      if (lane >= i) sum += before;
    }
    const double all = __shfl_sync(~0u, sum, 31), at[] = {sum - g[1], sum};
    float* decays = request_.of_chunk<float>(a_.decays, chunk_, a_.value_heads, head, 3 * kChunk);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 2 * lane + i;
      const float first = static_cast<float>(at[i]);
      sums_[h * kChunk + row] = make_float2(first, static_cast<float>(at[i] - first));
      betas_[h * kChunk + row] = beta[i];
      decays[row] = expf(first), decays[kChunk + row] = expf(static_cast<float>(all - at[i]));
      decays[2 * kChunk + row] = beta[i];
    }
  }

  // A into shared memory, P to where the scan finds it.
  __device__ __forceinline__ void systems(const float (&same)[2][8], const float (&mixed)[2][8], int h) const {
    float* system = systems_ + h * kSystem;
    __half* to = request_.of_chunk<__half>(a_.mixed, chunk_, a_.value_heads, value_head(h), kTerms * kChunk * kChunk);
    const float2* sums = sums_ + h * kChunk;
    each_pair<2>([&](int n, int p, int s) {
      const int i = first_row() + lane_row(s), j = first_column() + n * 16 + lane_column(p), e = p * 4 + s * 2;
      const float d0 = decay(sums[i], sums[j], j <= i), d1 = decay(sums[i], sums[j + 1], j + 1 <= i);
      const float beta = betas_[h * kChunk + i];
      const float a0 = j < i ? beta * same[n][e] * d0 : 0.0f, a1 = j + 1 < i ? beta * same[n][e + 1] * d1 : 0.0f;
      *reinterpret_cast<float2*>(system + i * kSystemPitch + j) = make_float2(a0, a1);
      put_pair<kTerms>(to + i * kChunk + j, kChunk * kChunk, mixed[n][e] * d0, mixed[n][e + 1] * d1);
    });
  }
  __device__ __forceinline__ static float decay(const float2& i, const float2& j, bool below) {
    const float sum = __fadd_rn(__fsub_rn(i.x, j.x), __fsub_rn(i.y, j.y));
    return __expf(below ? sum : __int_as_float(0xff800000));  // errs more where the decay is strong, and the product small
  }

  // Column j of T.
  __device__ __forceinline__ void solve(int h, int j) const {
    const float* system = systems_ + h * kSystem;
    __half* to = request_.of_chunk<__half>(a_.solved, chunk_, a_.value_heads, value_head(h), kTerms * kChunk * kChunk) + j;
    float x[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      float sum[4] = {i == j ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int l = 0; l < i; l += 4) {
        const float4 a = *reinterpret_cast<const float4*>(system + i * kSystemPitch + l);
        sum[0] = fmaf(-a.x, x[l], sum[0]);
        if (l + 1 < i) sum[1] = fmaf(-a.y, x[l + 1], sum[1]);
        if (l + 2 < i) sum[2] = fmaf(-a.z, x[l + 2], sum[2]);
        if (l + 3 < i) sum[3] = fmaf(-a.w, x[l + 3], sum[3]);
      }
      x[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      const __half first = __float2half_rn(x[i]);
      to[i * kChunk] = first;
      if (kTerms == 2) to[kChunk * kChunk + i * kChunk] = __float2half_rn(x[i] - __half2float(first));
    }
  }
};

}  // namespace onecat::gdn
