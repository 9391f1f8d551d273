// Spreads rows of the gated delta rule over threads: one piece of work per layer, batch row and key head.
#pragma once
#include <algorithm>

#include "ffi/parallel.h"
#include "gdn/operands.h"

namespace onecat::gdn {

constexpr int64_t kParallelWork = 1 << 17;  // state elements times passes below which a thread costs more than it brings

// What a handler replaces; the rest is null.
struct Results {
  float* states;
  void* windows;
  float* out;
};

// Which layers: `count` of the stack from `first` on. Layer first + i reads kept rows `place + i`, and its row b has the
// flat slot (place + i) * slots + slots[b].
struct Layers {
  int64_t first, count, place, slots;
};

inline Weights weights_at(const Operands& in, const Shape& s, int64_t layer) {
  return {in.conv.typed_data() + layer * s.channels * s.width, in.a_log.typed_data() + layer * s.value_heads,
          in.dt_bias.typed_data() + layer * s.value_heads};
}

template <class Byte>
Byte* moved(Byte* base, int64_t count) {
  return base ? base + count : nullptr;
}

inline Row row_at(const Operands& in, const Sizes& z, const Results& to, int64_t place, int64_t b, int64_t slot) {
  const Shape& s = z.shape;
  const int64_t values = s.value_heads * s.value_dim, state = slot * values * s.key_dim;
  const int64_t window = slot * (s.width - 1) * s.channels * bytes_of(s.window);
  const int64_t token = (place * z.batch + b) * z.tokens;
  return {static_cast<const char*>(in.qkv.untyped_data()) + token * s.channels * bytes_of(s.rows),
          in.gates.typed_data() + token * 2 * s.value_heads,
          in.states.typed_data() + state,
          moved(to.states, state),
          static_cast<const char*>(in.windows.untyped_data()) + window,
          moved(static_cast<char*>(to.windows), window),
          moved(to.out, b * z.tokens * values),
          in.count.typed_data()[b],
          in.start.typed_data()[b] == 0};
}

inline void run_rows(xla::ffi::ThreadPool& pool, const Operands& in, const Sizes& z, const Layers& layers,
                     const Results& to) {
  const Shape& s = z.shape;
  const int64_t values = s.value_heads * s.value_dim;
  const int32_t *slot = in.slots.typed_data(), *count = in.count.typed_data();
  int64_t work = 0;
  for (int64_t b = 0; b < z.batch; ++b) {
    if (to.out) std::fill(to.out + (b * z.tokens + count[b]) * values, to.out + (b + 1) * z.tokens * values, 0.0f);
    if (count[b] > 0) work += layers.count * values * s.key_dim * (count[b] + 1);
  }
  if (work == 0) return;
  const Kernel body = kernel(cpu_isa());
  const int64_t items = layers.count * z.batch * s.key_heads;
  parallel_for(pool, items, work < kParallelWork ? items : 1, [&](int64_t first, int64_t last) {
    const IeeeFloats mode;
    for (int64_t item = first; item < last; ++item) {
      const int64_t b = item / s.key_heads % z.batch, i = item / (s.key_heads * z.batch), place = layers.place + i;
      if (count[b] == 0) continue;
      const Row row = row_at(in, z, to, place, b, place * layers.slots + slot[b]);
      body(s, weights_at(in, s, layers.first + i), row, item % s.key_heads);
    }
  });
}

}  // namespace onecat::gdn
