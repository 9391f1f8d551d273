// FFI handlers of the FP8 linear on CUDA.
#include "ffi/message.h"
#include "linear/gpu_launch.h"

namespace onecat::linear {
namespace {

constexpr Kind kKind = {"fp8", 32};
constexpr StepBytes kBytes = {1024, 64, 4, 0, 0}, kRowBytes = {1024, 0, 0, 0, 1 << 16};
constexpr const char* kRows = "";  // suffixes of the kernels for scales of rows, and of 128 k
constexpr const char* kBlocks = "_blocks";

struct Packed {
  U8 codes;
  F32 scales;
  LayerIndex index;
  int32_t mul, add;
};

// Checks the weight against logical [n, k], fills the arguments that describe it and picks the kernels.
ffi::Error describe(const Body& body, const Packed& w, int64_t n, int64_t k, LinearArgs* args, const char** suffix) {
  if (ffi::Error error = describe_codes(body, w.codes, w.index, w.mul, w.add, n, k, args); error.failure()) return error;
  const int64_t layers = args->layers, blocks = args->blocks, groups = (k + 127) / 128;
  if (has_shape(w.scales.dimensions(), {layers, blocks * body.block_rows()})) {
    args->rows = w.scales.typed_data();
    *suffix = kRows;
  } else if (has_shape(w.scales.dimensions(), {layers, blocks, groups, body.block_rows()})) {
    args->scales = w.scales.typed_data();
    args->groups = static_cast<int>(groups);
    *suffix = kBlocks;
  } else {
    return invalid("fp8 linear: scales are ", shape_text(w.scales.dimensions()), ", must be [", layers, ", ",
                   blocks * body.block_rows(), "] or [", layers, ", ", blocks, ", ", groups, ", ", body.block_rows(), "]");
  }
  return ffi::Error::Success();
}

ffi::Error Linear(CUstream stream, F16 x, U8 codes, F32 scales, LayerIndex index, ffi::Result<ffi::AnyBuffer> y, int32_t mul,
                  int32_t add, std::string_view layout) {
  Body body;
  LinearArgs args{};
  const char* suffix;
  if (ffi::Error error = body_of(kKind, layout, &body); error.failure()) return error;
  if (ffi::Error error = check_rows(kKind, x, *y); error.failure()) return error;
  const Packed weight{codes, scales, index, mul, add};
  if (ffi::Error error = describe(body, weight, y->dimensions()[1], x.dimensions()[1], &args, &suffix); error.failure()) return error;
  return launch_linear(stream, body, suffix, suffix == kRows ? kRowBytes : kBytes, x, *y, args);
}

ffi::Error Expand(CUstream stream, U8 codes, F32 scales, LayerIndex index, ffi::Result<F16> slab, int32_t mul, int32_t add,
                  std::string_view layout) {
  Body body;
  LinearArgs args{};
  const char* suffix;
  if (ffi::Error error = body_of(kKind, layout, &body); error.failure()) return error;
  if (ffi::Error error = check_slab(kKind, *slab); error.failure()) return error;
  const Packed weight{codes, scales, index, mul, add};
  const auto d = slab->dimensions();
  if (ffi::Error error = describe(body, weight, d[0], d[1], &args, &suffix); error.failure()) return error;
  return launch_expand(stream, body, suffix, kBytes, *slab, args);
}

ffi::Error Initialize(CUstream stream, int32_t, int32_t, std::string_view layout) {
  return load_kernels(stream, kKind, layout, {kRows, kBlocks}, true, true);
}

XLA_FFI_DEFINE_HANDLER(kLinear, Linear,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<F16>()
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

const Registration kRegisterLinear("onecat_fp8_linear_gpu_v2", "CUDA", kLinear, kInitialize);
const Registration kRegisterExpand("onecat_fp8_expand_gpu_v2", "CUDA", kExpand, kInitialize);

}  // namespace
}  // namespace onecat::linear
