// FFI handlers of the probes.
#include "ffi/cuda_launch.h"
#include "ffi/message.h"
#include "ffi/registry.h"

namespace onecat {
namespace {

namespace ffi = xla::ffi;

using Stream = ffi::PlatformStream<CUstream>;
constexpr const char* kModule = "probes";
constexpr unsigned kBlocks = 1056, kThreads = 512;  // 8 for each of 132 multiprocessors

ffi::Error Stamp(CUstream stream, ffi::AnyBuffer x, ffi::RemainingArgs, ffi::Result<ffi::AnyBuffer> same,
                 ffi::Result<ffi::Buffer<ffi::U32>> out) {
  if (x.untyped_data() != same->untyped_data()) return invalid("stamp: the first operand and result must share memory");
  void* clock = out->typed_data();
  void* pointers[] = {&clock};
  return launch_kernel(stream, {kModule, "stamp", 1, 1, 1, 1, 0}, pointers);
}

ffi::Error Copy(CUstream stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y) {
  if (x.size_bytes() % 16) return invalid("copy: ", x.size_bytes(), " bytes, must be a multiple of 16");
  void *from = x.untyped_data(), *to = y->untyped_data();
  unsigned long long count = x.size_bytes() / 16;
  void* pointers[] = {&from, &to, &count};
  return launch_kernel(stream, {kModule, "copy", kBlocks, 1, 1, kThreads, 0}, pointers);
}

ffi::Error Initialize(CUstream stream) {
  for (const char* kernel : {"stamp", "copy"})
    if (ffi::Error error = load_kernel(stream, kModule, kernel); error.failure()) return error;
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kStamp, Stamp,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::Buffer<ffi::U32>>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCopy, Copy, ffi::Ffi::Bind().Ctx<Stream>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize, ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Ctx<Stream>());

const Registration kRegisterStamp("onecat_stamp_gpu_v1", "CUDA", kStamp, kInitialize);
const Registration kRegisterCopy("onecat_copy_gpu_v1", "CUDA", kCopy, kInitialize);

}  // namespace
}  // namespace onecat
