// FFI handlers of the INT4 linear on CUDA.
#include "ffi/message.h"
#include "linear/gpu_launch.h"

namespace onecat::linear {
namespace {

constexpr Kind kKind = {"int4", 64};
constexpr const char* kUnits = "";  // suffixes of the kernels: 16-bit scales, groups that are multiples of 64 k
constexpr const char* kHalves = "_halves";  // 16-bit scales, other groups
constexpr const char* kWide = "_wide";      // float32 scales

struct Packed {
  U8 codes;
  ffi::AnyBuffer scales;
  U8 zeros;
  LayerIndex index;
  int32_t mul, add, group;
};

bool scale_type(ffi::DataType type, int* out) {
  switch (type) {
    case ffi::DataType::F32: *out = kScaleF32; return true;
    case ffi::DataType::F16: *out = kScaleF16; return true;
    case ffi::DataType::BF16: *out = kScaleBF16; return true;
    default: return false;
  }
}

const char* suffix_of(const LinearArgs& args, int32_t group) {
  return args.scale_type == kScaleF32 ? kWide : group % kKind.m8n8k4_unit_k ? kHalves : kUnits;
}

StepBytes bytes_of(const LinearArgs& args, int32_t group) {
  return {512, (args.scale_type == kScaleF32 ? 64 : 32) + 16, group / 32, 0, 0};
}

// Checks the weight against logical [n, k] and fills the arguments that describe it.
ffi::Error describe(const Body& body, const Packed& w, int64_t n, int64_t k, LinearArgs* args) {
  if (ffi::Error error = describe_codes(body, w.codes, w.index, w.mul, w.add, n, k, args); error.failure()) return error;
  if (!scale_type(w.scales.element_type(), &args->scale_type))
    return invalid("int4 linear: scales have element type ", static_cast<int>(w.scales.element_type()),
                   ", must be float32, float16 or bfloat16");
  if (w.group < 1 || w.group % 32 || k % w.group)
    return invalid("int4 linear: groups of ", w.group, " k, must be a multiple of 32 that divides K, which is ", k);
  const int64_t layers = args->layers, blocks = args->blocks;
  const int64_t groups = (static_cast<int64_t>(args->units) * body.unit_k() + w.group - 1) / w.group;
  if (!has_shape(w.scales.dimensions(), {layers, blocks, groups, body.block_rows()}) ||
      !has_shape(w.zeros.dimensions(), {layers, blocks, groups, body.block_rows()}))
    return invalid("int4 linear: scales are ", shape_text(w.scales.dimensions()), " and zero points ",
                   shape_text(w.zeros.dimensions()), ", must be [", layers, ", ", blocks, ", ", groups, ", ", body.block_rows(), "]");
  const uint64_t halves = static_cast<uint64_t>(w.group / 32);
  args->scales = w.scales.untyped_data();
  args->zeros = w.zeros.typed_data();
  args->groups = static_cast<int>(groups);
  args->group_reciprocal = halves == 1 ? 0 : static_cast<unsigned>(((uint64_t{1} << 32) + halves - 1) / halves);
  return ffi::Error::Success();
}

ffi::Error Linear(CUstream stream, F16 x, U8 codes, ffi::AnyBuffer scales, U8 zeros, LayerIndex index,
                  ffi::Result<ffi::AnyBuffer> y, int32_t mul, int32_t add, int32_t group, std::string_view layout) {
  Body body;
  LinearArgs args{};
  if (ffi::Error error = body_of(kKind, layout, &body); error.failure()) return error;
  if (ffi::Error error = check_rows(kKind, x, *y); error.failure()) return error;
  const Packed weight{codes, scales, zeros, index, mul, add, group};
  if (ffi::Error error = describe(body, weight, y->dimensions()[1], x.dimensions()[1], &args); error.failure()) return error;
  return launch_linear(stream, body, suffix_of(args, group), bytes_of(args, group), x, *y, args);
}

ffi::Error Expand(CUstream stream, U8 codes, ffi::AnyBuffer scales, U8 zeros, LayerIndex index, ffi::Result<F16> slab,
                  int32_t mul, int32_t add, int32_t group, std::string_view layout) {
  Body body;
  LinearArgs args{};
  if (ffi::Error error = body_of(kKind, layout, &body); error.failure()) return error;
  if (ffi::Error error = check_slab(kKind, *slab); error.failure()) return error;
  const Packed weight{codes, scales, zeros, index, mul, add, group};
  if (ffi::Error error = describe(body, weight, slab->dimensions()[0], slab->dimensions()[1], &args); error.failure()) return error;
  return launch_expand(stream, body, suffix_of(args, group), bytes_of(args, group), *slab, args);
}

ffi::Error Initialize(CUstream stream, int32_t, int32_t, int32_t group, std::string_view layout) {
  return load_kernels(stream, kKind, layout, {group % kKind.m8n8k4_unit_k ? kHalves : kUnits, kWide}, true, false);
}

XLA_FFI_DEFINE_HANDLER(kLinear, Linear,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<F16>()
                           .Arg<U8>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<U8>()
                           .Arg<LayerIndex>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add")
                           .Attr<int32_t>("group")
                           .Attr<std::string_view>("layout"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kExpand, Expand,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<U8>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<U8>()
                           .Arg<LayerIndex>()
                           .Ret<F16>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add")
                           .Attr<int32_t>("group")
                           .Attr<std::string_view>("layout"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<Stream>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add")
                           .Attr<int32_t>("group")
                           .Attr<std::string_view>("layout"));

const Registration kRegisterLinear("onecat_int4_linear_gpu_v2", "CUDA", kLinear, kInitialize);
const Registration kRegisterExpand("onecat_int4_expand_gpu_v2", "CUDA", kExpand, kInitialize);

}  // namespace
}  // namespace onecat::linear
