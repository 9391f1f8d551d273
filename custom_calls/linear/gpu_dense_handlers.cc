// FFI handler of the linear with unquantised float16 weights on CUDA, for few rows. The weights lie as the library's product takes
// them, so more rows need no other copy.
#include "ffi/message.h"
#include "linear/gpu_launch.h"

namespace onecat::linear {
namespace {

constexpr Kind kKind = {"dense", 16};
constexpr StepBytes kBytes = {kTileRows * kStepK * 2, 0, 0, kTileRows * 64, 0};
constexpr const char* kLayout = "m16n8k16";

ffi::Error describe(const F16& w, int64_t n, int64_t k, LinearArgs* args) {
  const auto d = w.dimensions();
  if (d.size() != 3 || !has_shape(d, {d[0], n, k}))
    return invalid("dense linear: the weight is ", shape_text(d), ", must be [L, ", n, ", ", k, "]");
  if (k % 8) return invalid("dense linear: K is ", k, ", must be a multiple of 8");
  args->codes = static_cast<const unsigned char*>(w.untyped_data());
  args->layers = static_cast<int>(d[0]);
  args->blocks = static_cast<int>((n + kTileRows - 1) / kTileRows);
  args->units = static_cast<int>((k + kStepK - 1) / kStepK);
  args->n = static_cast<int>(n);
  args->k = static_cast<int>(k);
  return ffi::Error::Success();
}

ffi::Error Linear(CUstream stream, F16 x, F16 w, LayerIndex index, ffi::Result<ffi::AnyBuffer> y, int32_t mul, int32_t add) {
  Body body;
  LinearArgs args{};
  if (ffi::Error error = body_of(kKind, kLayout, &body); error.failure()) return error;
  if (ffi::Error error = check_rows(kKind, x, *y); error.failure()) return error;
  if (ffi::Error error = describe(w, y->dimensions()[1], x.dimensions()[1], &args); error.failure()) return error;
  describe_layer(index, mul, add, &args);
  return launch_linear(stream, body, "", kBytes, x, *y, args);
}

ffi::Error Initialize(CUstream stream, int32_t, int32_t) { return load_kernels(stream, kKind, kLayout, {""}, false, false); }

XLA_FFI_DEFINE_HANDLER(kLinear, Linear,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<F16>()
                           .Arg<F16>()
                           .Arg<LayerIndex>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<Stream>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add"));

const Registration kRegisterLinear("onecat_dense_linear_gpu_v1", "CUDA", kLinear, kInitialize);

}  // namespace
}  // namespace onecat::linear
