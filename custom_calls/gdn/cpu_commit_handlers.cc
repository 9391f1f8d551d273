// FFI handler of `commit` on CPU: kept rows of all layers of a stack, replayed in one call.
#include "ffi/registry.h"
#include "gdn/cpu_rows.h"

namespace ffi = xla::ffi;

namespace onecat::gdn {
namespace {

constexpr const char* kName = "gdn commit: ";

using ResultF32 = ffi::Result<F32>;
using ResultAny = ffi::Result<ffi::AnyBuffer>;

ffi::Error Commit(ffi::ThreadPool pool, ffi::AnyBuffer qkv, F32 gates, F32 conv, F32 a_log, F32 dt_bias, S32 slots,
                  S32 start, S32 count, F32 states, ffi::AnyBuffer windows, ResultF32 new_states, ResultAny new_windows,
                  int32_t first_layer, int32_t slots_per_layer) {
  const Operands in{qkv, gates, conv, a_log, dt_bias, slots, start, count, states, windows};
  Sizes z;
  if (std::string text = read_operands(in, true, &z); !text.empty()) return invalid(kName, text);
  if (std::string text = check_places(in, z, first_layer, slots_per_layer); !text.empty()) return invalid(kName, text);
  if (new_states->typed_data() != states.typed_data() || new_windows->untyped_data() != windows.untyped_data())
    return invalid(kName, "states and windows must be updated in place (input_output_aliases 8 to 0 and 9 to 1)");
  z.slots = slots_per_layer;
  if (std::string text = check_rows(in, z); !text.empty()) return invalid(kName, text);
  const Results to{new_states->typed_data(), new_windows->untyped_data(), nullptr};
  run_rows(pool, in, z, {0, z.layers, first_layer, slots_per_layer}, to);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kCommit, Commit,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<F32>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<F32>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int32_t>("first_layer")
                           .Attr<int32_t>("slots"));

const Registration kRegister("onecat_gdn_commit_rows_cpu_v1", "cpu", kCommit);

}  // namespace
}  // namespace onecat::gdn
