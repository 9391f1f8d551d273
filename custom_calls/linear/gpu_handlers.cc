// FFI handlers of the NVFP4 linear on CUDA: validation and launch. Nothing is allocated, nothing waits; the layer index
// stays on the device, so a program can be recorded once and replayed.
#include "ffi/cuda_launch.h"
#include "ffi/message.h"
#include "ffi/registry.h"
#include "linear/gpu_args.h"

namespace ffi = xla::ffi;

namespace onecat::linear {
namespace {

using F16 = ffi::Buffer<ffi::F16>;
using F32 = ffi::Buffer<ffi::F32>;
using U8 = ffi::Buffer<ffi::U8>;
using LayerIndex = ffi::BufferR0<ffi::S32>;
using Stream = ffi::PlatformStream<CUstream>;

constexpr int kMaxRows = 64;

struct Packed {
  U8 codes, scales;
  F32 global;
  LayerIndex index;
  int32_t mul, add;
};

// Module that reads a layout, or null.
const char* module_of(std::string_view layout) {
  if (layout == "m8n8k4") return "nvfp4_m8n8k4";
  if (layout == "m16n8k16") return "nvfp4_m16n8k16";
  return nullptr;
}

ffi::Error unknown_layout(std::string_view layout) {
  return invalid("nvfp4 linear: layout is '", layout, "', must be m8n8k4 or m16n8k16");
}

// Checks the weight against logical [n, k] and fills the arguments that describe it.
ffi::Error describe(const Packed& w, int64_t n, int64_t k, Nvfp4Args* args) {
  const auto c = w.codes.dimensions(), s = w.scales.dimensions(), g = w.global.dimensions();
  if (k % 32) return invalid("nvfp4 linear: K is ", k, ", must be a multiple of 32");
  const int64_t blocks = (n + kBlockRows - 1) / kBlockRows, units = (k + kUnitK - 1) / kUnitK;
  if (c.size() != 6 || c[1] != blocks || c[2] != units || c[3] != 2 || c[4] != 32 || c[5] != 16)
    return invalid("nvfp4 linear: codes are ", shape_text(c), ", a weight [", n, ", ", k, "] needs [L, ", blocks, ", ", units,
                   ", 2, 32, 16]");
  if (s.size() != 5 || s[0] != c[0] || s[1] != blocks || s[2] != units || s[3] != 32 || s[4] != 4)
    return invalid("nvfp4 linear: scales are ", shape_text(s), ", must be [", c[0], ", ", blocks, ", ", units, ", 32, 4]");
  if (g.size() != 2 || g[0] != c[0] || g[1] != blocks * kBlockRows)
    return invalid("nvfp4 linear: global scales are ", shape_text(g), ", must be [", c[0], ", ", blocks * kBlockRows, "]");
  args->codes = w.codes.typed_data();
  args->scales = w.scales.typed_data();
  args->global = w.global.typed_data();
  args->index = w.index.typed_data();
  args->mul = w.mul;
  args->add = w.add;
  args->layers = static_cast<int>(c[0]);
  args->blocks = static_cast<int>(blocks);
  args->units = static_cast<int>(units);
  args->n = static_cast<int>(n);
  args->k = static_cast<int>(k);
  return ffi::Error::Success();
}

// The kernel for m activation rows and a weight of `blocks` blocks. How many warps share K decides the order of summation,
// so it depends on the weight alone; the activation rows per block change no order.
struct Tactic {
  const char* kernel;
  int rows, warps;
};

constexpr Tactic kTactics[] = {{"linear_x8_w4", 8, 4},   {"linear_x16_w4", 16, 4}, {"linear_x32_w4", 32, 4},
                               {"linear_x8_w8", 8, 8},   {"linear_x16_w8", 16, 8}, {"linear_x32_w8", 32, 8}};
constexpr int64_t kManyBlocks = 256;  // from here on blocks alone fill a GPU, and long streams of few warps pay

const Tactic& tactic_of(int64_t m, int64_t blocks) {
  const int rows = m <= 8 ? 0 : m <= 16 ? 1 : 2;
  return kTactics[(blocks >= kManyBlocks ? 0 : 3) + rows];
}

ffi::Error Linear(CUstream stream, F16 x, U8 codes, U8 scales, F32 global, LayerIndex index, ffi::Result<ffi::AnyBuffer> y,
                  int32_t mul, int32_t add, std::string_view layout) {
  const char* module = module_of(layout);
  if (!module) return unknown_layout(layout);
  const auto xd = x.dimensions(), yd = y->dimensions();
  if (xd.size() != 2 || yd.size() != 2 || xd[0] != yd[0])
    return invalid("nvfp4 linear: x is ", shape_text(xd), " and y is ", shape_text(yd), ", must be [M, K] and [M, N]");
  if (xd[0] < 1 || xd[0] > kMaxRows) return invalid("nvfp4 linear: M is ", xd[0], ", must be 1 .. ", kMaxRows);
  const ffi::DataType out = y->element_type();
  if (out != ffi::DataType::F16 && out != ffi::DataType::F32)
    return invalid("nvfp4 linear: y has element type ", static_cast<int>(out), ", must be float16 or float32");
  Nvfp4Args args{};
  if (ffi::Error error = describe({codes, scales, global, index, mul, add}, yd[1], xd[1], &args); error.failure()) return error;
  args.x = x.untyped_data();
  args.out = y->untyped_data();
  args.m = static_cast<int>(xd[0]);
  args.out_is_f16 = out == ffi::DataType::F16;
  const Tactic& tactic = tactic_of(args.m, args.blocks);
  void* pointers[] = {&args};
  const unsigned tiles = static_cast<unsigned>((args.m + tactic.rows - 1) / tactic.rows);
  return launch_kernel(stream, {module, tactic.kernel, static_cast<unsigned>(args.blocks), tiles, 1, static_cast<unsigned>(tactic.warps * 32), 0}, pointers);
}

ffi::Error Expand(CUstream stream, U8 codes, U8 scales, F32 global, LayerIndex index, ffi::Result<F16> slab, int32_t mul,
                  int32_t add, std::string_view layout) {
  const char* module = module_of(layout);
  if (!module) return unknown_layout(layout);
  const auto d = slab->dimensions();
  if (d.size() != 2) return invalid("nvfp4 expand: the result is ", shape_text(d), ", must be [N, K]");
  Nvfp4Args args{};
  if (ffi::Error error = describe({codes, scales, global, index, mul, add}, d[0], d[1], &args); error.failure()) return error;
  args.out = slab->untyped_data();
  void* pointers[] = {&args};
  const unsigned groups = static_cast<unsigned>((args.units + kExpandWarps - 1) / kExpandWarps);
  return launch_kernel(stream, {module, "expand", static_cast<unsigned>(args.blocks), groups, 1, kExpandWarps * 32, 0}, pointers);
}

// Before the first run: load everything, so that recording a command buffer loads nothing.
ffi::Error Initialize(CUstream stream, int32_t, int32_t, std::string_view layout) {
  const char* module = module_of(layout);
  if (!module) return unknown_layout(layout);
  for (const Tactic& tactic : kTactics) {
    if (ffi::Error error = load_kernel(stream, module, tactic.kernel); error.failure()) return error;
  }
  return load_kernel(stream, module, "expand");
}

XLA_FFI_DEFINE_HANDLER(kLinear, Linear,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<F16>()
                           .Arg<U8>()
                           .Arg<U8>()
                           .Arg<F32>()
                           .Arg<LayerIndex>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add")
                           .Attr<std::string_view>("layout"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kExpand, Expand,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<U8>()
                           .Arg<U8>()
                           .Arg<F32>()
                           .Arg<LayerIndex>()
                           .Ret<F16>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add")
                           .Attr<std::string_view>("layout"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<Stream>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add")
                           .Attr<std::string_view>("layout"));

const Registration kRegisterLinear("onecat_nvfp4_linear_gpu_v1", "CUDA", kLinear, kInitialize);
const Registration kRegisterExpand("onecat_nvfp4_expand_gpu_v1", "CUDA", kExpand, kInitialize);

}  // namespace
}  // namespace onecat::linear
