// One token on the state of a value head:
//
//   S <- exp(g) S;  u = beta (v - S k);  S <- S + u k^T;  o = S q      (o by exp(g) S_before q + (q.k) u)
//
// 256 threads hold S [128, 128]: a thread 4 values times 16 keys, the 8 lanes of a group all keys of their 4 values. The order
// of every sum and all roundings are fixed, with outputs or without: this is what makes verified, replayed and single rows
// equal, bit for bit.
#pragma once
#include "gdn/gpu_args.h"
#include "gdn/ptx.cuh"

namespace onecat::gdn {

struct Token {
  const float *k, *q, *v;  // [Dk], [Dk], [Dv]
  float decay, rest, beta, q_dot_k;

  // S <- decay S is computed as kept S + rest S with kept + rest = decay: rounding a decay near one would shift every later
  // state by the same relative error, a thousand times over a thousand tokens.
  __device__ __forceinline__ static bool slow(float decay) { return decay > 0.5f; }
};

class State {
 public:
  const int group = threadIdx.x & 7;            // of keys: four of every 32
  const int first = (threadIdx.x >> 3) * 4;     // of its values

  __device__ __forceinline__ void clear() {
    each([&](int j, int i) { s_[j][i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f); });
  }
  __device__ __forceinline__ void load(const float* from) {
    each([&](int j, int i) { s_[j][i] = __ldcs(at(from, j, i)); });  // read once
  }
  __device__ __forceinline__ void store(float* to) const {
    each([&](int j, int i) { *const_cast<float4*>(at(to, j, i)) = s_[j][i]; });
  }

  // The value that this thread's output belongs to; only threads with has_output() have one.
  __device__ __forceinline__ int column() const { return first + (group & 3); }
  __device__ __forceinline__ bool has_output() const { return group & 4; }

  // The output (0 without kOut) of a token, and the state behind it if it is kept.
  template <bool kOut>
  __device__ __forceinline__ float advance(const Token& t, bool keep) {
    float sum[kOut ? 8 : 4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 k = keys(t.k, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) add(sum[j], k, s_[j][i]);
      if (!kOut) continue;
      const float4 q = keys(t.q, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) add(sum[kOut ? 4 + j : j], q, s_[j][i]);
    }
    const float seen = fold(sum);
    const float written = __fmul_rn(t.beta, __fmaf_rn(-t.decay, seen, t.v[first + owned<kOut>()]));
    float u[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) u[j] = __shfl_sync(~0u, written, (threadIdx.x & 24) | (kOut ? j : 2 * j));
    if (keep) Token::slow(t.decay) ? write_slow(t, u) : write_fast(t, u);
    if (!kOut) return 0.0f;
    const float mine = __shfl_sync(~0u, written, threadIdx.x & 27);  // u of column()
    return __fmaf_rn(t.q_dot_k, mine, __fmul_rn(t.decay, seen));
  }

 private:
  float4 s_[4][4];  // [value][32 keys]

  template <class F>
  __device__ __forceinline__ static void each(const F& body) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) body(j, i);
  }
  __device__ __forceinline__ const float4* at(const float* s, int j, int i) const {
    return reinterpret_cast<const float4*>(s + first * kGpuDim + group * 4) + j * (kGpuDim / 4) + i * 8;
  }
  __device__ __forceinline__ float4 keys(const float* x, int i) const {
    return *reinterpret_cast<const float4*>(x + i * 32 + group * 4);
  }
  __device__ __forceinline__ static void add(float& sum, const float4& x, const float4& s) {
    sum = __fmaf_rn(x.w, s.w, __fmaf_rn(x.z, s.z, __fmaf_rn(x.y, s.y, __fmaf_rn(x.x, s.x, sum))));
  }

  // The lanes of a group are added in pairs four, two and one apart; each step halves the sums that a lane still carries.
  // Afterwards lane `group` has S k of value group & 3 (group < 4) or S q of it.
  __device__ __forceinline__ float fold(const float (&sum)[8]) const {
    float x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = halve(sum[j], sum[4 + j], 4);
    return halve(halve(x[0], x[2], 2), halve(x[1], x[3], 2), 1);
  }
  // The same pairs without S q: lane `group` has S k of value group >> 1.
  __device__ __forceinline__ float fold(const float (&sum)[4]) const {
    const float x = halve(halve(sum[0], sum[2], 4), halve(sum[1], sum[3], 4), 2);
    return __fadd_rn(x, __shfl_xor_sync(~0u, x, 1));
  }
  __device__ __forceinline__ float halve(float low, float high, int bit) const {
    const bool upper = group & bit;
    return __fadd_rn(upper ? high : low, __shfl_xor_sync(~0u, upper ? low : high, bit));
  }
  template <bool kOut>
  __device__ __forceinline__ int owned() const {
    return kOut ? group & 3 : group >> 1;
  }

  __device__ __forceinline__ void write_slow(const Token& t, const float (&u)[4]) {
    write(t, [&](float s, float k, int j) { return __fmaf_rn(t.rest, s, __fmaf_rn(k, u[j], s)); });
  }
  __device__ __forceinline__ void write_fast(const Token& t, const float (&u)[4]) {
    write(t, [&](float s, float k, int j) { return __fmaf_rn(t.rest, s, __fmul_rn(k, u[j])); });
  }
  template <class F>
  __device__ __forceinline__ void write(const Token& t, const F& next) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 k = keys(t.k, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float4& s = s_[j][i];
        s = make_float4(next(s.x, k.x, j), next(s.y, k.y, j), next(s.z, k.z, j), next(s.w, k.w, j));
      }
    }
  }
};

}  // namespace onecat::gdn
