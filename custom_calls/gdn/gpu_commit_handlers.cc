// FFI handler of `commit` on CUDA: kept rows of all layers of a stack, replayed in one launch.
#include "ffi/registry.h"
#include "gdn/gpu_launch.h"

namespace onecat::gdn {
namespace {

constexpr const char* kName = "gdn commit: ";
constexpr const char* kKernel = "gdn_commit";

std::string describe(const Operands& in, const S32& arrivals, int32_t first_layer, int32_t slots, Sizes* z, RowsArgs* a) {
  if (std::string text = describe_rows(in, true, z, a); !text.empty()) return text;
  if (std::string text = check_places(in, *z, first_layer, slots); !text.empty()) return text;
  a->first_place = first_layer, a->layer_slots = slots;
  return describe_arrivals(arrivals, z->layers * z->batch * z->shape.key_heads, a);
}

ffi::Error Commit(CUstream stream, Any kept, F32 gates, F32 conv, F32 a_log, F32 dt_bias, S32 slots, S32 start, S32 count,
                  S32 arrivals, F32 states, Any windows, ffi::Result<F32> new_states, ffi::Result<Any> new_windows,
                  int32_t first_layer, int32_t slots_per_layer) {
  const Operands in{kept, gates, conv, a_log, dt_bias, slots, start, count, states, windows};
  if (new_states->typed_data() != states.typed_data() || new_windows->untyped_data() != windows.untyped_data())
    return invalid(kName, "states and windows must be updated in place (input_output_aliases 9 to 0 and 10 to 1)");
  Sizes z;
  RowsArgs a{};
  const std::string text = describe(in, arrivals, first_layer, slots_per_layer, &z, &a);
  if (!text.empty()) return invalid(kName, text);
  return launch_rows(stream, kKernel, a, a.layers, false);
}

ffi::Error Initialize(CUstream stream, int32_t, int32_t) { return load_kernel(stream, kRowsModule, kKernel); }

XLA_FFI_DEFINE_HANDLER(kCommit, Commit,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<Any>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<F32>()
                           .Arg<Any>()
                           .Ret<F32>()
                           .Ret<Any>()
                           .Attr<int32_t>("first_layer")
                           .Attr<int32_t>("slots"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(
    kInitialize, Initialize,
    ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Ctx<Stream>().Attr<int32_t>("first_layer").Attr<int32_t>("slots"));

const Registration kRegister("onecat_gdn_commit_rows_gpu_v1", "CUDA", kCommit, kInitialize);

}  // namespace
}  // namespace onecat::gdn
