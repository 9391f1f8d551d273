// What the CUDA handlers of the linear share: checks of codes and rows, launches. Nothing is allocated, nothing waits; the layer
// index stays on the device, so a program can be recorded once and replayed.
#pragma once
#include <string>
#include <string_view>

#include "ffi/cuda_launch.h"
#include "ffi/operands.h"
#include "ffi/registry.h"
#include "linear/gpu_args.h"
#include "linear/gpu_tactics.h"

namespace onecat::linear {

namespace ffi = xla::ffi;

using F16 = ffi::Buffer<ffi::F16>;
using F32 = ffi::Buffer<ffi::F32>;
using U8 = ffi::Buffer<ffi::U8>;
using LayerIndex = ffi::BufferR0<ffi::S32>;
using Stream = ffi::PlatformStream<CUstream>;

// The body that reads a weight: the kind's module for a layout, which is a family of matrix instructions.
struct Body {
  const Kind* kind;
  bool m16n8k16;
  std::string module;

  int64_t block_rows() const { return m16n8k16 ? kTileRows : 32; }
  int64_t unit_k() const { return m16n8k16 ? kStepK : kind->m8n8k4_unit_k; }
};

// The body for a layout, or an error.
ffi::Error body_of(const Kind& kind, std::string_view layout, Body* body);

// Checks codes and layer index against a logical weight [n, k] and fills the arguments that describe them.
ffi::Error describe_codes(const Body& body, const U8& codes, const LayerIndex& index, int32_t mul, int32_t add, int64_t n,
                          int64_t k, LinearArgs* args);
void describe_layer(const LayerIndex& index, int32_t mul, int32_t add, LinearArgs* args);

// Checks x [m, k] and y [m, n].
ffi::Error check_rows(const Kind& kind, const F16& x, const ffi::AnyBuffer& y);
ffi::Error check_slab(const Kind& kind, const F16& slab);

// Launch the kernels "linear_..." and "expand" with a suffix, which names the decoder. `args` lacks nothing but x and y.
ffi::Error launch_linear(CUstream stream, const Body& body, const char* suffix, const StepBytes& bytes, const F16& x,
                         ffi::AnyBuffer& y, LinearArgs& args);
ffi::Error launch_expand(CUstream stream, const Body& body, const char* suffix, const StepBytes& bytes, F16& slab,
                         LinearArgs& args);

// Before the first run: loads everything, so that recording a command buffer loads nothing; the expansion and the kernels of
// m16n8k16_direct.cuh where the kind has them.
ffi::Error load_kernels(CUstream stream, const Kind& kind, std::string_view layout,
                        std::initializer_list<const char*> suffixes, bool expands, bool direct);

}  // namespace onecat::linear
