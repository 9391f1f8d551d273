// FFI handlers of the NVFP4 linear on CUDA.
#include "ffi/message.h"
#include "linear/gpu_launch.h"

namespace onecat::linear {
namespace {

constexpr Kind kKind = {"nvfp4", 64};
constexpr StepBytes kBytes = {512 + 64, 0, 0, 0, 12};

struct Packed {
  U8 codes, scales;
  F32 global;
  LayerIndex index;
  int32_t mul, add;
};

// Checks the weight against logical [n, k] and fills the arguments that describe it.
ffi::Error describe(const Body& body, const Packed& w, int64_t n, int64_t k, LinearArgs* args) {
  if (ffi::Error error = describe_codes(body, w.codes, w.index, w.mul, w.add, n, k, args); error.failure()) return error;
  const int64_t layers = args->layers, blocks = args->blocks, units = args->units;
  const int64_t bytes = body.m16n8k16 ? 2 : 4;  // of a lane: its rows' scales
  if (!has_shape(w.scales.dimensions(), {layers, blocks, units, 32, bytes}))
    return invalid("nvfp4 linear: scales are ", shape_text(w.scales.dimensions()), ", must be [", layers, ", ", blocks, ", ",
                   units, ", 32, ", bytes, "]");
  if (!has_shape(w.global.dimensions(), {layers, blocks * body.block_rows()}))
    return invalid("nvfp4 linear: global scales are ", shape_text(w.global.dimensions()), ", must be [", layers, ", ",
                   blocks * body.block_rows(), "]");
  args->scales = w.scales.typed_data();
  args->rows = w.global.typed_data();
  return ffi::Error::Success();
}

ffi::Error Linear(CUstream stream, F16 x, U8 codes, U8 scales, F32 global, LayerIndex index, ffi::Result<ffi::AnyBuffer> y,
                  int32_t mul, int32_t add, std::string_view layout) {
  Body body;
  LinearArgs args{};
  if (ffi::Error error = body_of(kKind, layout, &body); error.failure()) return error;
  if (ffi::Error error = check_rows(kKind, x, *y); error.failure()) return error;
  const Packed weight{codes, scales, global, index, mul, add};
  if (ffi::Error error = describe(body, weight, y->dimensions()[1], x.dimensions()[1], &args); error.failure()) return error;
  return launch_linear(stream, body, "", kBytes, x, *y, args);
}

ffi::Error Expand(CUstream stream, U8 codes, U8 scales, F32 global, LayerIndex index, ffi::Result<F16> slab, int32_t mul,
                  int32_t add, std::string_view layout) {
  Body body;
  LinearArgs args{};
  if (ffi::Error error = body_of(kKind, layout, &body); error.failure()) return error;
  if (ffi::Error error = check_slab(kKind, *slab); error.failure()) return error;
  const Packed weight{codes, scales, global, index, mul, add};
  if (ffi::Error error = describe(body, weight, slab->dimensions()[0], slab->dimensions()[1], &args); error.failure()) return error;
  return launch_expand(stream, body, "", kBytes, *slab, args);
}

ffi::Error Initialize(CUstream stream, int32_t, int32_t, std::string_view layout) {
  return load_kernels(stream, kKind, layout, {""}, true, true);
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

const Registration kRegisterLinear("onecat_nvfp4_linear_gpu_v2", "CUDA", kLinear, kInitialize);
const Registration kRegisterExpand("onecat_nvfp4_expand_gpu_v2", "CUDA", kExpand, kInitialize);

}  // namespace
}  // namespace onecat::linear
