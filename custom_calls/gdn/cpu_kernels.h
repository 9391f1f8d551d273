// What the CPU kernel of the gated delta rule computes for one batch row and one key head: convolution with SiLU of the
// head's channels, their window, norms and gates, and the recurrence of the value heads that read this key head.
//
//   S <- exp(g) S;  u = beta (v - S k);  S <- S + u k^T;  o = S q      (o by exp(g) S_before q + (q.k) u)
//
// Sums over Dk run in 16 lanes over groups of 16 in ascending order, folded in halves. The tokens of a call go through
// these operations one after the other, so a token's bits don't depend on how tokens are spread over calls.
#pragma once
#include <cstdint>

#include "ffi/cpu_features.h"
#include "ffi/storage.h"

namespace onecat::gdn {

constexpr int kMaxTokens = 16;
constexpr int kMaxDim = 256;  // of keys and of values
constexpr int kDimMultiple = 16;
constexpr int kMinWidth = 2, kMaxWidth = 4;

struct Shape {
  int64_t key_heads, value_heads, key_dim, value_dim;
  int64_t channels;  // q | k | v
  int64_t width;     // taps of the convolution
  Storage window;    // float32, float16 or bfloat16
  Storage rows;      // of qkv: float32, or what the window is
};

struct Weights {
  const float* conv;     // [W, C]
  const float* a_log;    // [Hv]
  const float* dt_bias;  // [Hv]
};

// Where new_state or new_window is null that cache is left alone, where out is null no outputs are computed. The tokens that
// are computed have the same bits in every case.
struct Row {
  const void* qkv;     // [T, C]
  const float* gates;  // [T, 2 * Hv], b | a
  const float* state;  // [Hv, Dv, Dk]
  float* new_state;    // the same place, or null
  const void* window;  // [W - 1, C]
  void* new_window;    // the same place, or null
  float* out;          // [T, Hv, Dv], or null
  int64_t tokens;      // real ones
  bool fresh;          // starts from zeros, whatever state and window hold
};

using Kernel = void (*)(const Shape&, const Weights&, const Row&, int64_t key_head);

extern const Kernel kGenericKernel;
#if defined(__x86_64__)
extern const Kernel kAvx2Kernel;
extern const Kernel kAvx512Kernel;
#endif

inline Kernel kernel(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return kAvx512Kernel;
  if (isa == Isa::kAvx2) return kAvx2Kernel;
#endif
  (void)isa;
  return kGenericKernel;
}

}  // namespace onecat::gdn
