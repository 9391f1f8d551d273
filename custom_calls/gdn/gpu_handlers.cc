// FFI handlers of the gated delta rule on CUDA for new rows: `recur` (rows) and `verify`, the latter with and without keeping
// its inputs. Nothing is allocated, nothing waits. A row whose slot lies outside the cache gives zeros.
#include "ffi/registry.h"
#include "gdn/gpu_launch.h"

namespace onecat::gdn {
namespace {

constexpr const char* kRowsName = "gdn rows: ";
constexpr const char* kVerifyName = "gdn verify: ";

using ResultF32 = ffi::Result<F32>;
using ResultAny = ffi::Result<Any>;

struct Place {
  Scalar layer;
  int32_t mul, add;
};

std::string describe(const Operands& in, const Place& at, Any out, const F32& norm, float eps, Sizes* z, RowsArgs* a) {
  if (std::string text = describe_rows(in, false, z, a); !text.empty()) return text;
  a->layer = at.layer.typed_data(), a->mul = at.mul, a->add = at.add;
  return describe_outputs(out, norm, eps, *z, a);
}

ffi::Error Rows(CUstream stream, Any rows, F32 gates, F32 conv, F32 a_log, F32 dt_bias, F32 norm, Scalar layer, S32 slots,
                S32 start, S32 count, S32 arrivals, F32 states, Any windows, ResultAny out, ResultF32 new_states,
                ResultAny new_windows, int32_t mul, int32_t add, float eps) {
  const Operands in{rows, gates, conv, a_log, dt_bias, slots, start, count, states, windows};
  if (new_states->typed_data() != states.typed_data() || new_windows->untyped_data() != windows.untyped_data())
    return invalid(kRowsName, "states and windows must be updated in place (input_output_aliases 11 to 1 and 12 to 2)");
  Sizes z;
  RowsArgs a{};
  std::string text = describe(in, {layer, mul, add}, *out, norm, eps, &z, &a);
  if (text.empty()) text = describe_arrivals(arrivals, z.batch * z.shape.key_heads, &a);
  if (!text.empty()) return invalid(kRowsName, text);
  return launch_rows(stream, "gdn_step", a, 1, true);
}

ffi::Error Verify(CUstream stream, Any rows, F32 gates, F32 conv, F32 a_log, F32 dt_bias, F32 norm, Scalar layer, S32 slots,
                  S32 start, S32 count, F32 states, Any windows, ResultAny out, int32_t mul, int32_t add, float eps) {
  const Operands in{rows, gates, conv, a_log, dt_bias, slots, start, count, states, windows};
  Sizes z;
  RowsArgs a{};
  const std::string text = describe(in, {layer, mul, add}, *out, norm, eps, &z, &a);
  if (!text.empty()) return invalid(kVerifyName, text);
  return launch_rows(stream, "gdn_verify", a, 1, true);
}

std::string describe_kept(Any kept_rows, F32 kept_gates, const Sizes& z, RowsArgs* a) {
  const auto x = kept_rows.dimensions(), g = kept_gates.dimensions();
  const int64_t places = x.size() == 4 ? x[0] : 0;
  if (kept_rows.element_type() != ffi::DataType::F16 || !has_shape(x, {places, z.batch, z.tokens, z.shape.channels}) ||
      !has_shape(g, {places, z.batch, z.tokens, 2 * z.shape.value_heads}))
    return message("kept rows are ", shape_text(x), " and kept gates ", shape_text(g), ", must be float16 [P, ", z.batch, ", ",
                   z.tokens, ", ", z.shape.channels, "] and [P, ", z.batch, ", ", z.tokens, ", ", 2 * z.shape.value_heads, "]");
  a->kept_rows = kept_rows.untyped_data(), a->kept_gates = kept_gates.typed_data(), a->places = static_cast<int>(places);
  return "";
}

ffi::Error VerifyKept(CUstream stream, Any rows, F32 gates, F32 conv, F32 a_log, F32 dt_bias, F32 norm, Scalar layer,
                      S32 slots, S32 start, S32 count, F32 states, Any windows, Scalar place, Any kept_rows, F32 kept_gates,
                      ResultAny out, ResultAny new_rows, ResultF32 new_gates, int32_t mul, int32_t add, float eps) {
  const Operands in{rows, gates, conv, a_log, dt_bias, slots, start, count, states, windows};
  if (new_rows->untyped_data() != kept_rows.untyped_data() || new_gates->typed_data() != kept_gates.typed_data())
    return invalid(kVerifyName, "kept rows must be updated in place (input_output_aliases 13 to 1 and 14 to 2)");
  Sizes z;
  RowsArgs a{};
  std::string text = describe(in, {layer, mul, add}, *out, norm, eps, &z, &a);
  if (text.empty()) text = describe_kept(kept_rows, kept_gates, z, &a);
  if (!text.empty()) return invalid(kVerifyName, text);
  a.place = place.typed_data();
  return launch_rows(stream, "gdn_verify", a, 1, true);
}

ffi::Error InitializeRows(CUstream stream, int32_t, int32_t, float) { return load_kernel(stream, kRowsModule, "gdn_step"); }
ffi::Error InitializeVerify(CUstream stream, int32_t, int32_t, float) { return load_kernel(stream, kRowsModule, "gdn_verify"); }

#define ONECAT_LAYER_ATTRIBUTES .Attr<int32_t>("mul").Attr<int32_t>("add").Attr<float>("eps")
#define ONECAT_LAYER_OPERANDS \
  .Arg<Any>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<Scalar>().Arg<S32>().Arg<S32>().Arg<S32>()

XLA_FFI_DEFINE_HANDLER(kRows, Rows,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>() ONECAT_LAYER_OPERANDS.Arg<S32>()
                           .Arg<F32>()
                           .Arg<Any>()
                           .Ret<Any>()
                           .Ret<F32>()
                           .Ret<Any>() ONECAT_LAYER_ATTRIBUTES,
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kVerify, Verify,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>() ONECAT_LAYER_OPERANDS.Arg<F32>()
                           .Arg<Any>()
                           .Ret<Any>() ONECAT_LAYER_ATTRIBUTES,
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kVerifyKept, VerifyKept,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>() ONECAT_LAYER_OPERANDS.Arg<F32>()
                           .Arg<Any>()
                           .Arg<Scalar>()
                           .Arg<Any>()
                           .Arg<F32>()
                           .Ret<Any>()
                           .Ret<Any>()
                           .Ret<F32>() ONECAT_LAYER_ATTRIBUTES,
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInitializeRows, InitializeRows,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Ctx<Stream>() ONECAT_LAYER_ATTRIBUTES);
XLA_FFI_DEFINE_HANDLER(kInitializeVerify, InitializeVerify,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Ctx<Stream>() ONECAT_LAYER_ATTRIBUTES);

const Registration kRegisterRows("onecat_gdn_rows_gpu_v1", "CUDA", kRows, kInitializeRows);
const Registration kRegisterVerify("onecat_gdn_verify_rows_gpu_v1", "CUDA", kVerify, kInitializeVerify);
const Registration kRegisterKept("onecat_gdn_verify_kept_rows_gpu_v1", "CUDA", kVerifyKept, kInitializeVerify);

}  // namespace
}  // namespace onecat::gdn
