// Operands of the handlers of the gated delta rule: the one place where their shapes and numbers are checked.
#pragma once
#include <string>

#include "ffi/operands.h"
#include "gdn/cpu_kernels.h"

namespace onecat::gdn {

using F32 = xla::ffi::Buffer<xla::ffi::F32>;
using S32 = xla::ffi::BufferR1<xla::ffi::S32>;

struct Operands {
  xla::ffi::AnyBuffer qkv;      // [B, T, C] (on GPUs perhaps wider), kept rows [P, B, T, C] of P layers
  F32 gates;                    // [B, T, 2 * Hv], kept rows [P, B, T, 2 * Hv]
  F32 conv, a_log, dt_bias;     // [L, ...] of the stack
  S32 slots, start, count;      // [B]
  F32 states;                   // [X, Hv, Dv, Dk]
  xla::ffi::AnyBuffer windows;  // [X, W - 1, C]
};

struct Sizes {
  Shape shape;
  int64_t batch, tokens;
  int64_t layers;  // L
  int64_t slots;   // that a row may name
};

inline std::string read_heads(const Operands& in, Shape* s) {
  const auto state = in.states.dimensions();
  for (int64_t dim : {s->key_dim, s->value_dim}) {
    if (dim < kDimMultiple || dim > kMaxDim || dim % kDimMultiple)
      return message("states are ", shape_text(state), ", Dv and Dk must be multiples of ", kDimMultiple, " up to ", kMaxDim);
  }
  const int64_t keys = s->channels - s->value_heads * s->value_dim;
  s->key_heads = keys / (2 * s->key_dim);
  if (keys <= 0 || keys % (2 * s->key_dim) || s->value_heads % s->key_heads)
    return message(s->channels, " channels don't hold q and k of whole heads of ", s->key_dim, " beside v of ",
                   s->value_heads, " heads of ", s->value_dim);
  return "";
}

// Types of rows and windows: new rows are float32, kept ones have the window's type.
inline std::string read_types(const Operands& in, bool kept, Shape* s) {
  if (!storage_of(in.windows.element_type(), &s->window) || bytes_of(s->window) < 2)
    return "windows must be float32, float16 or bfloat16";
  const auto want = kept ? in.windows.element_type() : xla::ffi::DataType::F32;
  if (in.qkv.element_type() != want) return kept ? "qkv must have the type of the windows" : "qkv must be float32";
  s->rows = kept ? s->window : Storage::kF32;
  return "";
}

// Sizes from the operands' dimensions, or an error text. `kept` rows have a leading axis of layers.
inline std::string read_sizes(const Operands& in, bool kept, Sizes* z) {
  const auto x = in.qkv.dimensions(), state = in.states.dimensions(), conv = in.conv.dimensions();
  const size_t rank = kept ? 4 : 3;
  if (x.size() != rank || x[rank - 2] > kMaxTokens)
    return message("qkv is ", shape_text(x), ", must be ", kept ? "[P, B, T, C]" : "[B, T, C]", " with T at most ",
                   kMaxTokens);
  const int64_t channels = x[rank - 1];
  if (state.size() != 4) return message("states are ", shape_text(state), ", must be [X, Hv, Dv, Dk]");
  if (conv.size() != 3 || conv[2] != channels || conv[1] < kMinWidth || conv[1] > kMaxWidth)
    return message("conv is ", shape_text(conv), ", must be [L, W, ", channels, "] with W in ", kMinWidth, " .. ", kMaxWidth);
  *z = {{0, state[1], state[3], state[2], channels, conv[1], Storage::kF32, Storage::kF32},
        x[rank - 3], x[rank - 2], conv[0], state[0]};
  if (std::string text = read_heads(in, &z->shape); !text.empty()) return text;
  return read_types(in, kept, &z->shape);
}

inline std::string check_gates(const Operands& in, const Sizes& z, bool kept) {
  const int64_t last = 2 * z.shape.value_heads;
  const auto have = in.gates.dimensions();
  if (!kept) {
    if (has_shape(have, {z.batch, z.tokens, last})) return "";
    return message("gates are ", shape_text(have), ", must be [", z.batch, ", ", z.tokens, ", ", last, "]");
  }
  const int64_t places = in.qkv.dimensions()[0];
  if (has_shape(have, {places, z.batch, z.tokens, last})) return "";
  return message("gates are ", shape_text(have), ", must be [", places, ", ", z.batch, ", ", z.tokens, ", ", last, "]");
}

inline std::string check_shapes(const Operands& in, const Sizes& z, bool kept) {
  const Shape& s = z.shape;
  if (std::string text = check_gates(in, z, kept); !text.empty()) return text;
  for (const F32* gate : {&in.a_log, &in.dt_bias}) {
    if (!has_shape(gate->dimensions(), {z.layers, s.value_heads}))
      return message("a_log and dt_bias must be [", z.layers, ", ", s.value_heads, "], one is ",
                     shape_text(gate->dimensions()));
  }
  for (const S32* rows : {&in.slots, &in.start, &in.count}) {
    if (!has_shape(rows->dimensions(), {z.batch}))
      return message("slots, start and count must be [", z.batch, "], one is ", shape_text(rows->dimensions()));
  }
  const int64_t states = in.states.dimensions()[0];
  if (!has_shape(in.windows.dimensions(), {states, s.width - 1, s.channels}))
    return message("windows are ", shape_text(in.windows.dimensions()), ", must be [", states, ", ", s.width - 1, ", ",
                   s.channels, "]");
  return "";
}

// Whether a stack's kept rows and slots lie inside those of all layers.
inline std::string check_places(const Operands& in, const Sizes& z, int64_t first_layer, int64_t slots) {
  const int64_t places = in.qkv.dimensions()[0], states = in.states.dimensions()[0];
  if (first_layer < 0 || first_layer + z.layers > places)
    return message("layers ", first_layer, " .. ", first_layer + z.layers - 1, " are replayed, rows are kept of 0 .. ",
                   places - 1);
  if (slots < 1 || places * slots != states)
    return message("there are ", states, " states, must be ", places, " layers of ", slots, " slots");
  return "";
}

inline std::string check_out(xla::ffi::AnyBuffer::Dimensions out, const Sizes& z) {
  const Shape& s = z.shape;
  if (has_shape(out, {z.batch, z.tokens, s.value_heads, s.value_dim})) return "";
  return message("o is ", shape_text(out), ", must be [", z.batch, ", ", z.tokens, ", ", s.value_heads, ", ", s.value_dim, "]");
}

// Numbers inside the operands: slots and counts of every row, no slot twice.
inline std::string check_rows(const Operands& in, const Sizes& z) {
  const int32_t *slot = in.slots.typed_data(), *start = in.start.typed_data(), *count = in.count.typed_data();
  for (int64_t b = 0; b < z.batch; ++b) {
    if (count[b] < 0 || count[b] > z.tokens)
      return message("row ", b, " has count ", count[b], ", must be 0 .. ", z.tokens);
    if (count[b] == 0) continue;
    if (slot[b] < 0 || slot[b] >= z.slots)
      return message("row ", b, " has slot ", slot[b], ", must be 0 .. ", z.slots - 1);
    if (start[b] < 0) return message("row ", b, " starts at ", start[b], ", must be 0 or more");
    for (int64_t other = 0; other < b; ++other) {
      if (count[other] > 0 && slot[other] == slot[b])
        return message("rows ", other, " and ", b, " both have slot ", slot[b], ", each needs its own");
    }
  }
  return "";
}

// Everything but the numbers of the rows.
inline std::string read_operands(const Operands& in, bool kept, Sizes* z) {
  if (std::string text = read_sizes(in, kept, z); !text.empty()) return text;
  return check_shapes(in, *z, kept);
}

}  // namespace onecat::gdn
