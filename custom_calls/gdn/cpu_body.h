// The kernel of cpu_kernels.h, written once over sixteen lanes V (see ffi/lanes_generic.h). Everything is in an unnamed
// namespace: the same source is compiled for several instruction sets, and the linker must not merge the results.
#pragma once
#include <cmath>

#include "ffi/lanes_math.h"
#include "gdn/cpu_kernels.h"

namespace onecat::gdn {
namespace {

constexpr float kNormEps = 1e-6f;
constexpr float kSlowDecay = -0.5f;  // as SLOW_DECAY of reference.py

// ---- convolution

// A new row, rounded to the window's type, as an earlier call would have left it.
template <class V, Storage T>
inline V new_row(const Shape& s, const Row& row, int64_t at) {
  if (s.rows == T) return load_as<V, T>(row.qkv, at);
  return round_to<V, T>(V::load(static_cast<const float*>(row.qkv) + at));
}

// `count` channels from channel `first` on: rows of all tokens into dst [T, count], and the window after them. Without dst
// only the window.
template <class V, Storage T, int W>
void convolve(const Shape& s, const Weights& w, const Row& row, int64_t first, int64_t count, float* dst) {
  constexpr int64_t kSize = bytes_of(T);
  for (int64_t c = first; c < first + count; c += kLanes) {
    V taps[W], past[W];
    for (int j = 0; j < W; ++j) taps[j] = V::load(w.conv + j * s.channels + c);
    for (int j = 0; j < W - 1; ++j) past[j] = row.fresh ? V::all(0.0f) : load_as<V, T>(row.window, j * s.channels + c);
    for (int64_t t = 0; t < row.tokens; ++t) {
      past[W - 1] = new_row<V, T>(s, row, t * s.channels + c);
      if (dst) {
        V y = V::mul(past[0], taps[0]);
        for (int j = 1; j < W; ++j) y = V::fma(past[j], taps[j], y);
        silu_lanes(y).store(dst + t * count + c - first);
      }
      for (int j = 0; j < W - 1; ++j) past[j] = past[j + 1];
    }
    if (!row.new_window) continue;
    char* window = static_cast<char*>(row.new_window) + c * kSize;
    for (int j = 0; j < W - 1; ++j) store_as<V, T>(past[j], window + j * s.channels * kSize);
  }
}

template <class V, Storage T>
void convolve(const Shape& s, const Weights& w, const Row& row, int64_t first, int64_t count, float* dst) {
  switch (s.width) {
    case 2: return convolve<V, T, 2>(s, w, row, first, count, dst);
    case 3: return convolve<V, T, 3>(s, w, row, first, count, dst);
    default: return convolve<V, T, 4>(s, w, row, first, count, dst);
  }
}

template <class V>
void convolve(const Shape& s, const Weights& w, const Row& row, int64_t first, int64_t count, float* dst) {
  switch (s.window) {
    case Storage::kF16: return convolve<V, Storage::kF16>(s, w, row, first, count, dst);
    case Storage::kBF16: return convolve<V, Storage::kBF16>(s, w, row, first, count, dst);
    default: return convolve<V, Storage::kF32>(s, w, row, first, count, dst);
  }
}

// ---- norms and gates

template <class V>
void normalise(float* x, int64_t count, float scale) {
  const float factor = 1.0f / std::sqrt(dot_lanes<V>(x, x, count) + kNormEps);
  const V f = V::all(factor), s = V::all(scale);
  for (int64_t i = 0; i < count; i += kLanes) V::mul(V::mul(V::load(x + i), f), s).store(x + i);
}

// S <- decay S is computed as kept S + (rest S + u k^T), with kept + rest = decay: rounding exp(g) itself, when it is near
// one, would shift every later state by the same relative error, a thousand times over a thousand tokens.
struct Gates {
  float decay, kept, rest, beta;
};

inline Gates gates_of(const Shape& s, const Weights& w, const Row& row, int64_t token, int64_t head) {
  const float* gates = row.gates + token * 2 * s.value_heads + head;
  const float a = gates[s.value_heads] + w.dt_bias[head];
  const float softplus = (a > 0.0f ? a : 0.0f) + std::log1p(std::exp(a > 0.0f ? -a : a));
  const float g = -std::exp(w.a_log[head]) * softplus, decay = std::exp(g);
  const bool slow = g > kSlowDecay;
  const float beta = 1.0f / (1.0f + std::exp(-gates[0]));
  return {decay, slow ? 1.0f : 0.0f, slow ? std::expm1(g) : decay, beta};
}

// ---- recurrence

struct Token {
  const float *q, *k, *v;
  float* out;
  Gates gates;
  float q_dot_k;
};

// kRows rows of the state at a time. Without kOut there are no outputs.
template <class V>
struct Sums {
  V by_k[V::kRows], by_q[V::kRows];

  inline void clear() {
    for (int r = 0; r < V::kRows; ++r) by_k[r] = by_q[r] = V::all(0.0f);
  }
};

// What a token meets in the state.
template <class V, bool kOut>
inline void read_rows(const float* from, int64_t dk, const Token& token, Sums<V>& sums) {
  sums.clear();
  for (int64_t i = 0; i < dk; i += kLanes) {
    const V k = V::load(token.k + i), q = kOut ? V::load(token.q + i) : k;
    for (int r = 0; r < V::kRows; ++r) {
      const V s = V::load(from + r * dk + i);
      sums.by_k[r] = V::fma(s, k, sums.by_k[r]);
      if constexpr (kOut) sums.by_q[r] = V::fma(s, q, sums.by_q[r]);
    }
  }
}

// What it gives, and what it writes along its key.
template <class V, bool kOut>
inline void answer(const Token& token, int64_t dv, const Sums<V>& sums, V* u) {
  constexpr int R = V::kRows;
  float seen[R], read[R];
  V::template fold<R>(sums.by_k, seen);
  if constexpr (kOut) V::template fold<R>(sums.by_q, read);
  for (int r = 0; r < R; ++r) {
    const float written = token.gates.beta * std::fma(-token.gates.decay, seen[r], token.v[dv + r]);
    if constexpr (kOut) token.out[dv + r] = std::fma(token.gates.decay, read[r], token.q_dot_k * written);
    u[r] = V::all(written);
  }
}

// The state behind it, from `from` to `to` (the same place or another one), and on the way what the next token meets in it.
template <class V, bool kOut, bool kNext>
inline void write_rows(const float* from, float* to, int64_t dk, const Token& token, const V* u, const Token* next,
                       Sums<V>& sums) {
  const V kept = V::all(token.gates.kept), rest = V::all(token.gates.rest);
  if constexpr (kNext) sums.clear();
  for (int64_t i = 0; i < dk; i += kLanes) {
    const V k = V::load(token.k + i);
    const V next_k = kNext ? V::load(next->k + i) : k, next_q = kNext && kOut ? V::load(next->q + i) : k;
    for (int r = 0; r < V::kRows; ++r) {
      V s = V::load(from + r * dk + i);
      s = V::fma(kept, s, V::fma(rest, s, V::mul(u[r], k)));
      s.store(to + r * dk + i);
      if constexpr (kNext) sums.by_k[r] = V::fma(s, next_k, sums.by_k[r]);
      if constexpr (kNext && kOut) sums.by_q[r] = V::fma(s, next_q, sums.by_q[r]);
    }
  }
}

// All tokens over a few rows of the state at a time. A state that isn't kept lives in `scratch`, which stays in the
// first-level cache, and its last update is never computed.
template <class V, bool kOut, bool kKeep>
void recur(const float* state, float* new_state, const Shape& s, bool fresh, const Token* tokens, int64_t count) {
  alignas(64) float scratch[V::kRows * kMaxDim];
  const int64_t dk = s.key_dim;
  for (int64_t dv = 0; dv < s.value_dim; dv += V::kRows) {
    const float* from = state + dv * dk;
    float* to = kKeep ? new_state + dv * dk : scratch;
    if (fresh) {
      for (int64_t i = 0; i < V::kRows * dk; i += kLanes) V::all(0.0f).store(to + i);
      from = to;
    }
    Sums<V> sums;
    V u[V::kRows];
    read_rows<V, kOut>(from, dk, tokens[0], sums);
    for (int64_t t = 0; t < count - 1; ++t, from = to) {
      answer<V, kOut>(tokens[t], dv, sums, u);
      write_rows<V, kOut, true>(from, to, dk, tokens[t], u, &tokens[t + 1], sums);
    }
    answer<V, kOut>(tokens[count - 1], dv, sums, u);
    if constexpr (kKeep) write_rows<V, kOut, false>(from, to, dk, tokens[count - 1], u, nullptr, sums);
  }
}

template <class V>
void recur(const Shape& s, const Row& row, int64_t head, const Token* tokens) {
  const float* state = row.state + head * s.value_dim * s.key_dim;
  if (!row.new_state) return recur<V, true, false>(state, nullptr, s, row.fresh, tokens, row.tokens);
  float* to = row.new_state + head * s.value_dim * s.key_dim;
  if (!row.out) return recur<V, false, true>(state, to, s, row.fresh, tokens, row.tokens);
  recur<V, true, true>(state, to, s, row.fresh, tokens, row.tokens);
}

// ---- entry point

template <class V>
void run(const Shape& s, const Weights& w, const Row& row, int64_t key_head) {
  alignas(64) float q[kMaxTokens * kMaxDim], k[kMaxTokens * kMaxDim], v[kMaxTokens * kMaxDim];
  const int64_t dk = s.key_dim, dv = s.value_dim, each = s.value_heads / s.key_heads;
  convolve<V>(s, w, row, key_head * dk, dk, row.out ? q : nullptr);
  convolve<V>(s, w, row, (s.key_heads + key_head) * dk, dk, k);
  Token tokens[kMaxTokens];
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dk)));
  for (int64_t t = 0; t < row.tokens; ++t) {
    normalise<V>(k + t * dk, dk, 1.0f);
    tokens[t].k = k + t * dk;
    tokens[t].v = v + t * dv;
    if (!row.out) continue;
    normalise<V>(q + t * dk, dk, scale);
    tokens[t].q = q + t * dk;
    tokens[t].q_dot_k = dot_lanes<V>(tokens[t].q, tokens[t].k, dk);
  }
  for (int64_t head = key_head * each; head < (key_head + 1) * each; ++head) {
    convolve<V>(s, w, row, 2 * s.key_heads * dk + head * dv, dv, v);
    for (int64_t t = 0; t < row.tokens; ++t) {
      tokens[t].gates = gates_of(s, w, row, t, head);
      if (row.out) tokens[t].out = row.out + (t * s.value_heads + head) * dv;
    }
    recur<V>(s, row, head, tokens);
  }
}

}  // namespace
}  // namespace onecat::gdn
