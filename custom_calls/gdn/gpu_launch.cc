#include "gdn/gpu_launch.h"

#include "ffi/message.h"

namespace onecat::gdn {
namespace {

constexpr int kRowMultiple = 8;  // values of a row, so that four may be read at once

std::string read_sizes_gpu(const Operands& in, bool kept, int64_t max_tokens, Sizes* z) {
  const auto x = in.qkv.dimensions(), state = in.states.dimensions(), conv = in.conv.dimensions();
  const size_t rank = kept ? 4 : 3;
  if (in.qkv.element_type() != ffi::DataType::F16 || in.windows.element_type() != ffi::DataType::F16)
    return "rows and windows must be float16";
  if (x.size() != rank || x[rank - 2] < 1 || x[rank - 2] > max_tokens || x[rank - 1] % kRowMultiple)
    return message("rows are ", shape_text(x), ", must be ", kept ? "[P, B, T, C]" : "[B, T, N]", " with T in 1 .. ",
                   max_tokens, " and whole multiples of ", kRowMultiple);
  if (state.size() != 4 || state[2] != kGpuDim || state[3] != kGpuDim)
    return message("states are ", shape_text(state), ", must be [X, Hv, ", kGpuDim, ", ", kGpuDim, "]");
  if (conv.size() != 3 || conv[1] != kGpuTaps || (kept ? conv[2] != x[rank - 1] : conv[2] > x[rank - 1]))
    return message("conv is ", shape_text(conv), ", must be [L, ", kGpuTaps, ", C] with C channels of rows ", shape_text(x));
  *z = {{0, state[1], kGpuDim, kGpuDim, conv[2], kGpuTaps, Storage::kF16, Storage::kF16},
        x[rank - 3], x[rank - 2], conv[0], state[0]};
  return read_heads(in, &z->shape);
}

}  // namespace

std::string check_layer(const Operands& in, bool kept, int64_t max_tokens, Sizes* z) {
  if (std::string text = read_sizes_gpu(in, kept, max_tokens, z); !text.empty()) return text;
  return check_shapes(in, *z, kept);
}

std::string describe_rows(const Operands& in, bool kept, Sizes* z, RowsArgs* args) {
  if (std::string text = check_layer(in, kept, kGpuTokens, z); !text.empty()) return text;
  RowsArgs& a = *args;
  a.rows = in.qkv.untyped_data(), a.gates = in.gates.typed_data();
  a.conv = in.conv.typed_data(), a.a_log = in.a_log.typed_data(), a.dt_bias = in.dt_bias.typed_data();
  a.slots = in.slots.typed_data(), a.start = in.start.typed_data(), a.count = in.count.typed_data();
  a.states = in.states.typed_data(), a.windows = in.windows.untyped_data();
  const auto x = in.qkv.dimensions();
  a.layers = static_cast<int>(z->layers), a.batch = static_cast<int>(z->batch), a.tokens = static_cast<int>(z->tokens);
  a.width = static_cast<int>(x[x.size() - 1]), a.channels = static_cast<int>(z->shape.channels);
  a.key_heads = static_cast<int>(z->shape.key_heads), a.value_heads = static_cast<int>(z->shape.value_heads);
  a.layer_slots = static_cast<int>(z->slots);
  return "";
}

std::string describe_outputs(Any out, const F32& norm, float eps, const Sizes& z, RowsArgs* args) {
  if (std::string text = check_out(out.dimensions(), z); !text.empty()) return text;
  args->out = out.untyped_data();
  const bool gated = out.element_type() == ffi::DataType::F16;
  if (!gated && out.element_type() != ffi::DataType::F32) return "o must be float32, or float16 where it is normed";
  if (!has_shape(norm.dimensions(), {gated ? z.layers : 0, kGpuDim}))
    return message("norm is ", shape_text(norm.dimensions()), ", must be [", gated ? z.layers : 0, ", ", kGpuDim, "]");
  if (!gated) return "";
  const int64_t need = z.shape.channels + z.shape.value_heads * kGpuDim;
  if (args->width < need) return message("rows have ", args->width, " values, q, k, v and z need ", need);
  args->norm = norm.typed_data(), args->eps = eps;
  return "";
}

std::string describe_arrivals(const S32& arrivals, int64_t count, RowsArgs* args) {
  if (!has_shape(arrivals.dimensions(), {count}))
    return message("arrivals are ", shape_text(arrivals.dimensions()), ", must be [", count, "]");
  args->arrivals = static_cast<unsigned*>(arrivals.untyped_data());
  return "";
}

ffi::Error launch_rows(CUstream stream, const char* kernel, const RowsArgs& args, int layers, bool outputs) {
  if (args.batch == 0 || layers == 0) return ffi::Error::Success();
  RowsArgs a = args;
  // k, v and gates, q where there are outputs, outputs where they are normed
  const int floats = a.tokens * ((outputs ? 3 : 2) * kGpuDim + 4 + (a.norm ? kGpuDim : 0));
  void* pointers[] = {&a};
  const unsigned each = static_cast<unsigned>(a.value_heads / a.key_heads), heads = static_cast<unsigned>(a.key_heads);
  const unsigned requests = static_cast<unsigned>(a.batch * layers);
  return launch_kernel(stream,
                       {kRowsModule, kernel, each, heads, requests, kGpuThreads, static_cast<unsigned>(floats * sizeof(float))},
                       pointers);
}

}  // namespace onecat::gdn
