// FFI handler of the gated delta rule on CUDA for long inputs: what doesn't depend on the state, for all chunks at once, then
// the scan over chunks. Nothing is allocated, nothing waits: what the first kernel leaves for the second are results.
#include <string>

#include "ffi/registry.h"
#include "gdn/chunk_args.h"
#include "gdn/gpu_launch.h"

namespace onecat::gdn {
namespace {

constexpr const char* kName = "gdn chunks: ";
constexpr int64_t kMaxChunkTokens = 1 << 20;

using F16 = ffi::Buffer<ffi::F16>;
using ResultF16 = ffi::Result<F16>;
using ResultF32 = ffi::Result<F32>;
using ResultAny = ffi::Result<Any>;

// ---- shared memory, as chunk_inputs.cuh and chunk_scan.cuh lay it out

constexpr unsigned inputs_bytes(int terms) {
  const int tiles = 2 * terms * kChunk * (kGpuDim + 8) * 2, systems = kSolvedHeads * kChunk * (kChunk + 4) * 4;
  return (tiles > systems ? tiles : systems) + kSolvedHeads * kChunk * 3 * 4;
}

// `wide` tiles of [64, 128], `square` ones of [64, 64] and `rows` of [64, span], beside the state's [128, span].
constexpr unsigned scan_bytes(int terms, int span, int wide, int square, int rows) {
  const int tiles = wide * (kGpuDim + 8) + square * (kChunk + 8) + rows * (span + 8);
  return terms * 2 * (tiles * kChunk + kGpuDim * (span + 8));
}

constexpr unsigned kSharedSm70 = 96 * 1024, kSharedSm90 = 227 * 1024;
static_assert(inputs_bytes(2) <= kSharedSm70 && scan_bytes(2, 32, 1, 1, 2) <= kSharedSm70);
static_assert(scan_bytes(1, 64, 3, 2, 3) <= kSharedSm90 && scan_bytes(2, 64, 3, 2, 2) <= kSharedSm90);

struct ScanShape {
  const char* name;
  int span;  // values of a block
  unsigned bytes;
};

ScanShape scan_shape(std::string_view layout, int terms, const Device& device) {
  const ScanShape ahead{"ahead", 64, scan_bytes(terms, 64, 3, 2, terms == 1 ? 3 : 2)};
  const ScanShape small{"short", 32, scan_bytes(terms, 32, 1, 1, 2)};
  return layout == "m16n8k16" && device.shared_bytes >= ahead.bytes ? ahead : small;
}

// ---- what the first kernel leaves

struct Work {
  Any keys, queries, values, solved, mixed;
  F32 decays;
};

std::string check_tile(const char* name, Any x, int64_t heads, int64_t columns, int64_t terms, const Sizes& z,
                       int64_t chunks) {
  if (x.element_type() == ffi::DataType::F16 && has_shape(x.dimensions(), {z.batch, chunks, heads, terms, kChunk, columns}))
    return "";
  return message(name, " are ", shape_text(x.dimensions()), ", must be float16 [", z.batch, ", ", chunks, ", ", heads, ", ",
                 terms, ", ", kChunk, ", ", columns, "]");
}

std::string describe_work(Work& w, int terms, const Sizes& z, ChunkArgs* a) {
  const int64_t hk = z.shape.key_heads, hv = z.shape.value_heads, n = a->chunks;
  if (std::string text = check_tile("keys", w.keys, hk, kGpuDim, terms, z, n); !text.empty()) return text;
  if (std::string text = check_tile("queries", w.queries, hk, kGpuDim, terms, z, n); !text.empty()) return text;
  if (std::string text = check_tile("T", w.solved, hv, kChunk, terms, z, n); !text.empty()) return text;
  if (std::string text = check_tile("P", w.mixed, hv, kChunk, terms, z, n); !text.empty()) return text;
  const auto type = terms == 2 ? ffi::DataType::F32 : ffi::DataType::F16;
  if (w.values.element_type() != type || !has_shape(w.values.dimensions(), {z.batch, n, hv, kChunk, kGpuDim}))
    return message("values are ", shape_text(w.values.dimensions()), ", must be ", terms == 2 ? "float32" : "float16", " [",
                   z.batch, ", ", n, ", ", hv, ", ", kChunk, ", ", kGpuDim, "]");
  if (!has_shape(w.decays.dimensions(), {z.batch, n, hv, 3, kChunk}))
    return message("decays are ", shape_text(w.decays.dimensions()), ", must be [", z.batch, ", ", n, ", ", hv, ", 3, ", kChunk,
                   "]");
  a->keys = w.keys.untyped_data(), a->queries = w.queries.untyped_data(), a->values = w.values.untyped_data();
  a->solved = w.solved.untyped_data(), a->mixed = w.mixed.untyped_data(), a->decays = w.decays.typed_data();
  return "";
}

// ---- operands

std::string describe(const Operands& in, F32 out, Sizes* z, ChunkArgs* args) {
  if (std::string text = check_layer(in, false, kMaxChunkTokens, z); !text.empty()) return text;
  if (std::string text = check_out(out.dimensions(), *z); !text.empty()) return text;
  ChunkArgs& a = *args;
  a.rows = in.qkv.untyped_data(), a.gates = in.gates.typed_data();
  a.conv = in.conv.typed_data(), a.a_log = in.a_log.typed_data(), a.dt_bias = in.dt_bias.typed_data();
  a.slots = in.slots.typed_data(), a.start = in.start.typed_data(), a.count = in.count.typed_data();
  a.states = in.states.typed_data(), a.windows = in.windows.untyped_data(), a.out = out.typed_data();
  a.layers = static_cast<int>(z->layers), a.batch = static_cast<int>(z->batch), a.tokens = static_cast<int>(z->tokens);
  a.width = static_cast<int>(in.qkv.dimensions()[2]), a.channels = static_cast<int>(z->shape.channels);
  a.chunks = (a.tokens + kChunk - 1) / kChunk;
  a.key_heads = static_cast<int>(z->shape.key_heads), a.value_heads = static_cast<int>(z->shape.value_heads);
  a.all_slots = static_cast<int>(z->slots);
  return "";
}

ffi::Error launch(CUstream stream, std::string_view layout, int terms, ChunkArgs& a) {
  if (a.batch == 0) return ffi::Error::Success();
  const std::string module = "gdn_chunks_" + std::string(layout), end = "_" + std::to_string(terms);
  const ScanShape shape = scan_shape(layout, terms, device_of(stream));
  const std::string inputs = "gdn_chunk_inputs" + end, scan = "gdn_chunk_scan_" + std::string(shape.name) + end;
  const int each = a.value_heads / a.key_heads, groups = (each + kSolvedHeads - 1) / kSolvedHeads;
  const auto u = [](int x) { return static_cast<unsigned>(x); };
  void* pointers[] = {&a};
  const Launch first{module.c_str(), inputs.c_str(), u(a.key_heads * groups), u(a.chunks), u(a.batch), kChunkThreads,
                     inputs_bytes(terms)};
  if (ffi::Error error = launch_kernel(stream, first, pointers); error.failure()) return error;
  return launch_kernel(stream,
                       {module.c_str(), scan.c_str(), u(kGpuDim / shape.span), u(a.value_heads), u(a.batch), kChunkThreads,
                        shape.bytes},
                       pointers);
}

// ---- handlers

ffi::Error Chunks(CUstream stream, Any rows, F32 gates, F32 conv, F32 a_log, F32 dt_bias, Scalar layer, S32 slots, S32 start,
                  S32 count, F32 states, Any windows, ResultF32 out, ResultF32 new_states, ResultAny new_windows,
                  ResultAny keys, ResultAny queries, ResultAny values, ResultAny solved, ResultAny mixed, ResultF32 decays,
                  int32_t mul, int32_t add, int32_t terms, std::string_view layout) {
  if (layout != "m8n8k4" && layout != "m16n8k16")
    return invalid(kName, "layout is '", layout, "', must be m8n8k4 or m16n8k16");
  if (terms != 1 && terms != 2) return invalid(kName, "operands have ", terms, " terms, must be 1 or 2");
  if (new_states->typed_data() != states.typed_data() || new_windows->untyped_data() != windows.untyped_data())
    return invalid(kName, "states and windows must be updated in place (input_output_aliases 9 to 1 and 10 to 2)");
  const Operands in{rows, gates, conv, a_log, dt_bias, slots, start, count, states, windows};
  Work work{*keys, *queries, *values, *solved, *mixed, *decays};
  Sizes z;
  ChunkArgs a{};
  std::string text = describe(in, *out, &z, &a);
  if (text.empty()) text = describe_work(work, terms, z, &a);
  if (!text.empty()) return invalid(kName, text);
  a.layer = layer.typed_data(), a.mul = mul, a.add = add;
  return launch(stream, layout, terms, a);
}

ffi::Error Initialize(CUstream stream, int32_t, int32_t, int32_t terms, std::string_view layout) {
  const std::string module = "gdn_chunks_" + std::string(layout), end = "_" + std::to_string(terms);
  const std::string scan = std::string("gdn_chunk_scan_") + scan_shape(layout, terms, device_of(stream)).name + end;
  if (ffi::Error error = load_kernel(stream, module.c_str(), ("gdn_chunk_inputs" + end).c_str()); error.failure()) return error;
  return load_kernel(stream, module.c_str(), scan.c_str());
}

#define ONECAT_CHUNK_ATTRIBUTES \
  .Attr<int32_t>("mul").Attr<int32_t>("add").Attr<int32_t>("terms").Attr<std::string_view>("layout")

XLA_FFI_DEFINE_HANDLER(kChunks, Chunks,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<Any>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<Scalar>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<F32>()
                           .Arg<Any>()
                           .Ret<F32>()
                           .Ret<F32>()
                           .Ret<Any>()
                           .Ret<Any>()
                           .Ret<Any>()
                           .Ret<Any>()
                           .Ret<Any>()
                           .Ret<Any>()
                           .Ret<F32>() ONECAT_CHUNK_ATTRIBUTES,
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Ctx<Stream>() ONECAT_CHUNK_ATTRIBUTES);

const Registration kRegister("onecat_gdn_chunks_gpu_v1", "CUDA", kChunks, kInitialize);

}  // namespace
}  // namespace onecat::gdn
