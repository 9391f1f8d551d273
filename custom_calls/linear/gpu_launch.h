// What the CUDA handlers of the linear share: checks of codes and rows, tactics, launches. Nothing is allocated, nothing waits;
// the layer index stays on the device, so a program can be recorded once and replayed.
#pragma once
#include <string>
#include <string_view>

#include "ffi/cuda_launch.h"
#include "ffi/operands.h"
#include "ffi/registry.h"
#include "linear/gpu_args.h"

namespace onecat::linear {

namespace ffi = xla::ffi;

using F16 = ffi::Buffer<ffi::F16>;
using F32 = ffi::Buffer<ffi::F32>;
using U8 = ffi::Buffer<ffi::U8>;
using LayerIndex = ffi::BufferR0<ffi::S32>;
using Stream = ffi::PlatformStream<CUstream>;

// One weight kind: "nvfp4" with units of 64 k, say.
struct Kind {
  const char* name;
  int unit_k;
};

// The module that reads the kind in a layout, or an error.
ffi::Error module_of(const Kind& kind, std::string_view layout, std::string* module);

// Checks codes and layer index against a logical weight [n, k] and fills the arguments that describe them.
ffi::Error describe_codes(const Kind& kind, const U8& codes, const LayerIndex& index, int32_t mul, int32_t add, int64_t n,
                          int64_t k, LinearArgs* args);

// Checks x [m, k] and y [m, n].
ffi::Error check_rows(const Kind& kind, const F16& x, const ffi::AnyBuffer& y);
ffi::Error check_slab(const Kind& kind, const F16& slab);

// Launch the kernels "linear_..." and "expand" with a suffix, which names the decoder. `args` lacks nothing but x and y.
ffi::Error launch_linear(CUstream stream, const std::string& module, const char* suffix, const F16& x, ffi::AnyBuffer& y,
                         LinearArgs& args);
ffi::Error launch_expand(CUstream stream, const std::string& module, const char* suffix, F16& slab, LinearArgs& args);

// Before the first run: loads everything, so that recording a command buffer loads nothing.
ffi::Error load_kernels(CUstream stream, const Kind& kind, std::string_view layout,
                        std::initializer_list<const char*> suffixes);

}  // namespace onecat::linear
