// What the CUDA handlers of attention share: checks of the operands, and the arguments that describe them. Tables, lengths and
// the layer's first page stay on the device, so a program can be recorded once and replayed.
#pragma once
#include <string>
#include <string_view>

#include "ffi/cuda_launch.h"
#include "ffi/operands.h"
#include "ffi/registry.h"
#include "paged_attention/gpu_args.h"

namespace onecat::paged_attention {

namespace ffi = xla::ffi;

using Any = ffi::AnyBuffer;
using F16 = ffi::Buffer<ffi::F16>;
using F32 = ffi::Buffer<ffi::F32>;
using Table = ffi::BufferR2<ffi::S32>;
using S32 = ffi::BufferR1<ffi::S32>;
using Scalar = ffi::BufferR0<ffi::S32>;
using Stream = ffi::PlatformStream<CUstream>;

struct Operands {
  F16 q;     // [B, T, H, D]
  Any k, v;  // [X, S, J, D]
  Table table;
  S32 start, count;
  Scalar first_page;
};

struct Sight {
  float scale;
  int64_t window;
  bool causal;
};

// The end of a kernel's name, or null for an element type that no kernel reads.
const char* cache_name(ffi::DataType type);

// Tables and lengths of a batch, or an error text.
std::string check_place(const Table& table, const S32& start, const S32& count, int64_t batch);

// Checks operands and result and fills all arguments but those of splits.
ffi::Error describe(const char* name, const Operands& x, const Sight& sight, std::string_view layout, int64_t max_tokens,
                    F32& out, AttendArgs* args);

inline int up(int a, int b) { return (a + b - 1) / b; }

// Rows of one block: 16 while they hold all of a request's rows, else what the registers hold.
inline int block_rows(int64_t dim, int64_t rows) { return rows <= 16 ? 16 : dim == 256 ? 48 : 32; }

// rows_m8n8k4.cuh keeps the queries and one tile of 32 keys and values.
inline unsigned shared_m8n8k4(int dim, int rows) {
  return (rows + 2 * 32) * dim * 2 + rows * (4 * 40 * 4 + 40 * 2 + 4);
}

}  // namespace onecat::paged_attention
