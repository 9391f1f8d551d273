// What the CPU kernel of paged attention computes for one batch row and one kv head: all query heads that share it, all
// new tokens.
//
// A query at position p sees keys up to p, or all of them when it isn't causal; with a window only those above p - window.
// They are taken in tiles of 64 at absolute positions, from the first tile with a key that some query sees:
//   logit = scale * (sum over D in 16 lanes over groups of 16 in ascending order, folded in halves)
//   top', fade = e^(top - top'), p = e^(logit - top'), total = total * fade + p folded likewise,
//   out = out * fade, then one fused multiply-add per key in ascending order; at last out / total.
//
// Other keys take no part, so neither what lies there, nor other queries, nor blocking or threads change a bit; those that
// no query sees aren't read, nor are their pages looked up.
#pragma once
#include <cstdint>

#include "ffi/cpu_features.h"
#include "ffi/storage.h"

namespace onecat::paged_attention {

constexpr int kMaxDim = 256;
constexpr int kDimMultiple = 16;
constexpr int kMaxGroup = 64;  // query heads per kv head

struct Shape {
  int64_t heads, kv_heads, dim;
  int64_t page_size;
  Storage query;  // float32, float16 or bfloat16
  Storage cache;
  float scale;
  int64_t window;  // positions that a query may look back, its own included
  bool causal;
};

// First position that a query sees.
inline int64_t first_seen(const Shape& s, int64_t position) {
  return position < s.window ? 0 : position - s.window + 1;
}

struct Row {
  const void* q;         // [T, H, D]
  const void *k, *v;     // [S, J, D] of the layer's page 0 and on
  const int32_t* table;  // page ids inside the layer
  int64_t start, count;  // count real tokens, at positions from start on
  float* out;            // [T, H, D]
};

using Kernel = void (*)(const Shape&, const Row&, int64_t kv_head);

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

}  // namespace onecat::paged_attention
