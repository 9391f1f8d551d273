// What the CUDA handlers of few rows share: checks of the operands, the arguments that describe them, and the launch. Slots,
// lengths and layer numbers stay on the device, so a program can be recorded once and replayed.
#pragma once
#include <string>

#include "ffi/cuda_launch.h"
#include "gdn/gpu_args.h"
#include "gdn/operands.h"

namespace onecat::gdn {

namespace ffi = xla::ffi;

using Any = ffi::AnyBuffer;
using Scalar = ffi::BufferR0<ffi::S32>;
using Stream = ffi::PlatformStream<CUstream>;

constexpr const char* kRowsModule = "gdn_rows";

// Types and shapes that all kernels need, or an error text. Kept rows have a leading axis of layers.
std::string check_layer(const Operands& in, bool kept, int64_t max_tokens, Sizes* z);

// Fills what all kernels of few rows read, or gives an error text.
std::string describe_rows(const Operands& in, bool kept, Sizes* z, RowsArgs* args);

// The outputs: o [B, T, Hv, Dv] as float32, or as float16 after a norm with weights [L, Dv] and the gate behind q | k | v.
std::string describe_outputs(Any out, const F32& norm, float eps, const Sizes& z, RowsArgs* args);

// Counters of the blocks that have read a window, int32 zeros [count].
std::string describe_arrivals(const S32& arrivals, int64_t count, RowsArgs* args);

// One block per value head, request and layer: at most 65535 requests of all layers.
ffi::Error launch_rows(CUstream stream, const char* kernel, const RowsArgs& args, int layers, bool outputs);

}  // namespace onecat::gdn
