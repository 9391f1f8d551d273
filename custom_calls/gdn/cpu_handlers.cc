// FFI handler of the gated delta rule on CPU: validation and splitting over threads.
#include <algorithm>

#include "ffi/operands.h"
#include "ffi/parallel.h"
#include "ffi/registry.h"
#include "gdn/cpu_kernels.h"

namespace ffi = xla::ffi;

namespace onecat::gdn {
namespace {

using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::BufferR1<ffi::S32>;
using LayerIndex = ffi::BufferR0<ffi::S32>;
using ResultF32 = ffi::Result<F32>;
using ResultAny = ffi::Result<ffi::AnyBuffer>;

constexpr const char* kName = "gdn rows: ";
constexpr int64_t kParallelWork = 1 << 17;  // state elements times passes below which a thread costs more than it brings

struct Operands {
  F32 qkv, gates, conv, a_log, dt_bias;
  LayerIndex layer;
  S32 slots, start, count;
  F32 states;
  ffi::AnyBuffer windows;
};

// Shape from the operands' dimensions, or an error text.
std::string read_shape(const Operands& in, Shape* s) {
  const auto x = in.qkv.dimensions(), state = in.states.dimensions(), conv = in.conv.dimensions();
  if (x.size() != 3 || x[1] > kMaxTokens)
    return message("qkv is ", shape_text(x), ", must be [B, T, C] with T at most ", kMaxTokens);
  if (state.size() != 4) return message("states are ", shape_text(state), ", must be [X, Hv, Dv, Dk]");
  if (conv.size() != 3 || conv[2] != x[2] || conv[1] < kMinWidth || conv[1] > kMaxWidth)
    return message("conv is ", shape_text(conv), ", must be [L, W, ", x[2], "] with W in ", kMinWidth, " .. ", kMaxWidth);
  *s = {0, state[1], state[3], state[2], x[2], conv[1], Storage::kF32};
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

std::string check_shapes(const Operands& in, const F32& out, const Shape& s) {
  const int64_t batch = in.qkv.dimensions()[0], tokens = in.qkv.dimensions()[1], layers = in.conv.dimensions()[0];
  if (!has_shape(in.gates.dimensions(), {batch, tokens, 2 * s.value_heads}))
    return message("gates are ", shape_text(in.gates.dimensions()), ", must be [", batch, ", ", tokens, ", ",
                   2 * s.value_heads, "]");
  for (const F32* gate : {&in.a_log, &in.dt_bias}) {
    if (!has_shape(gate->dimensions(), {layers, s.value_heads}))
      return message("a_log and dt_bias must be [", layers, ", ", s.value_heads, "], one is ",
                     shape_text(gate->dimensions()));
  }
  for (const S32* rows : {&in.slots, &in.start, &in.count}) {
    if (!has_shape(rows->dimensions(), {batch}))
      return message("slots, start and count must be [", batch, "], one is ", shape_text(rows->dimensions()));
  }
  if (!has_shape(in.windows.dimensions(), {in.states.dimensions()[0], s.width - 1, s.channels}))
    return message("windows are ", shape_text(in.windows.dimensions()), ", must be [", in.states.dimensions()[0], ", ",
                   s.width - 1, ", ", s.channels, "]");
  if (!has_shape(out.dimensions(), {batch, tokens, s.value_heads, s.value_dim}))
    return message("o is ", shape_text(out.dimensions()), ", must be [", batch, ", ", tokens, ", ", s.value_heads, ", ",
                   s.value_dim, "]");
  return "";
}

// Numbers inside the operands: slots and counts of every row, no slot twice.
std::string check_rows(const Operands& in) {
  const int64_t batch = in.qkv.dimensions()[0], tokens = in.qkv.dimensions()[1], slots = in.states.dimensions()[0];
  const int32_t *slot = in.slots.typed_data(), *start = in.start.typed_data(), *count = in.count.typed_data();
  for (int64_t b = 0; b < batch; ++b) {
    if (count[b] < 0 || count[b] > tokens)
      return message("row ", b, " has count ", count[b], ", must be 0 .. ", tokens);
    if (count[b] == 0) continue;
    if (slot[b] < 0 || slot[b] >= slots) return message("row ", b, " has slot ", slot[b], ", must be 0 .. ", slots - 1);
    if (start[b] < 0) return message("row ", b, " starts at ", start[b], ", must be 0 or more");
    for (int64_t other = 0; other < b; ++other) {
      if (count[other] > 0 && slot[other] == slot[b])
        return message("rows ", other, " and ", b, " both have slot ", slot[b], ", each needs its own");
    }
  }
  return "";
}

void run_rows(ffi::ThreadPool& pool, const Operands& in, const Shape& s, const Weights& weights, float* out) {
  const int64_t batch = in.qkv.dimensions()[0], tokens = in.qkv.dimensions()[1];
  const int64_t values = s.value_heads * s.value_dim, state = values * s.key_dim;
  const int64_t window_bytes = (s.width - 1) * s.channels * bytes_of(s.window);
  const int32_t *slot = in.slots.typed_data(), *start = in.start.typed_data(), *count = in.count.typed_data();
  int64_t work = 0;
  for (int64_t b = 0; b < batch; ++b) {
    std::fill(out + (b * tokens + count[b]) * values, out + (b + 1) * tokens * values, 0.0f);
    if (count[b] > 0) work += state * (count[b] + 1);
  }
  if (work == 0) return;
  const Kernel body = kernel(cpu_isa());
  const int64_t items = batch * s.key_heads;
  parallel_for(pool, items, work < kParallelWork ? items : 1, [&](int64_t first, int64_t last) {
    const IeeeFloats mode;
    for (int64_t item = first; item < last; ++item) {
      const int64_t b = item / s.key_heads;
      if (count[b] == 0) continue;
      const Row row{in.qkv.typed_data() + b * tokens * s.channels,
                    in.gates.typed_data() + b * tokens * 2 * s.value_heads,
                    in.states.typed_data() + slot[b] * state,
                    static_cast<char*>(in.windows.untyped_data()) + slot[b] * window_bytes,
                    out + b * tokens * values,
                    count[b],
                    start[b] == 0};
      body(s, weights, row, item % s.key_heads);
    }
  });
}

ffi::Error Rows(ffi::ThreadPool pool, F32 qkv, F32 gates, F32 conv, F32 a_log, F32 dt_bias, LayerIndex index, S32 slots,
                S32 start, S32 count, F32 states, ffi::AnyBuffer windows, ResultF32 out, ResultF32 new_states,
                ResultAny new_windows, int32_t mul, int32_t add) {
  const Operands in{qkv, gates, conv, a_log, dt_bias, index, slots, start, count, states, windows};
  Shape s;
  if (std::string text = read_shape(in, &s); !text.empty()) return invalid(kName, text);
  if (!storage_of(windows.element_type(), &s.window) || bytes_of(s.window) < 2)
    return invalid(kName, "windows must be float32, float16 or bfloat16");
  if (std::string text = check_shapes(in, *out, s); !text.empty()) return invalid(kName, text);
  if (new_states->typed_data() != states.typed_data() || new_windows->untyped_data() != windows.untyped_data())
    return invalid(kName, "states and windows must be updated in place (input_output_aliases 9 to 1 and 10 to 2)");
  if (std::string text = check_rows(in); !text.empty()) return invalid(kName, text);
  int64_t layer;
  if (std::string text = pick_layer(index.typed_data()[0], mul, add, conv.dimensions()[0], &layer); !text.empty())
    return invalid(kName, text);
  const Weights weights{conv.typed_data() + layer * s.channels * s.width, a_log.typed_data() + layer * s.value_heads,
                        dt_bias.typed_data() + layer * s.value_heads};
  run_rows(pool, in, s, weights, out->typed_data());
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kRows, Rows,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<LayerIndex>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<F32>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<F32>()
                           .Ret<F32>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add"));

const Registration kRegister("onecat_gdn_rows_cpu_v1", "cpu", kRows);

}  // namespace
}  // namespace onecat::gdn
