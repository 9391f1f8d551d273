// FFI handlers of the gated delta rule on CPU for new rows: `recur` (rows) and `verify`.
#include "ffi/registry.h"
#include "gdn/cpu_rows.h"

namespace ffi = xla::ffi;

namespace onecat::gdn {
namespace {

using LayerIndex = ffi::BufferR0<ffi::S32>;
using ResultF32 = ffi::Result<F32>;
using ResultAny = ffi::Result<ffi::AnyBuffer>;

// Checks the operands of one layer's new rows and runs them into `to` and `out`.
std::string run_layer(ffi::ThreadPool& pool, const Operands& in, LayerIndex index, int32_t mul, int32_t add, F32 out,
                      Results to) {
  Sizes z;
  if (std::string text = read_operands(in, false, &z); !text.empty()) return text;
  if (std::string text = check_out(out.dimensions(), z); !text.empty()) return text;
  if (std::string text = check_rows(in, z); !text.empty()) return text;
  int64_t layer;
  if (std::string text = pick_layer(index.typed_data()[0], mul, add, z.layers, &layer); !text.empty()) return text;
  to.out = out.typed_data();
  run_rows(pool, in, z, {layer, 1, 0, 0}, to);
  return "";
}

ffi::Error Rows(ffi::ThreadPool pool, ffi::AnyBuffer qkv, F32 gates, F32 conv, F32 a_log, F32 dt_bias, LayerIndex index,
                S32 slots, S32 start, S32 count, F32 states, ffi::AnyBuffer windows, ResultF32 out, ResultF32 new_states,
                ResultAny new_windows, int32_t mul, int32_t add) {
  constexpr const char* kName = "gdn rows: ";
  const Operands in{qkv, gates, conv, a_log, dt_bias, slots, start, count, states, windows};
  if (new_states->typed_data() != states.typed_data() || new_windows->untyped_data() != windows.untyped_data())
    return invalid(kName, "states and windows must be updated in place (input_output_aliases 9 to 1 and 10 to 2)");
  const Results to{new_states->typed_data(), new_windows->untyped_data(), nullptr};
  const std::string text = run_layer(pool, in, index, mul, add, *out, to);
  return text.empty() ? ffi::Error::Success() : invalid(kName, text);
}

ffi::Error Verify(ffi::ThreadPool pool, ffi::AnyBuffer qkv, F32 gates, F32 conv, F32 a_log, F32 dt_bias, LayerIndex index,
                  S32 slots, S32 start, S32 count, F32 states, ffi::AnyBuffer windows, ResultF32 out, int32_t mul,
                  int32_t add) {
  const Operands in{qkv, gates, conv, a_log, dt_bias, slots, start, count, states, windows};
  const std::string text = run_layer(pool, in, index, mul, add, *out, {nullptr, nullptr, nullptr});
  return text.empty() ? ffi::Error::Success() : invalid("gdn verify: ", text);
}

XLA_FFI_DEFINE_HANDLER(kRows, Rows,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
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

XLA_FFI_DEFINE_HANDLER(kVerify, Verify,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
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
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add"));

const Registration kRegisterRows("onecat_gdn_rows_cpu_v1", "cpu", kRows);
const Registration kRegisterVerify("onecat_gdn_verify_rows_cpu_v1", "cpu", kVerify);

}  // namespace
}  // namespace onecat::gdn
