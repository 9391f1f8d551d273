// What the CPU handlers of the linear share: operand types, checks of rows, rows of zeros, splitting over threads.
#pragma once
#include <algorithm>

#include "ffi/operands.h"
#include "ffi/parallel.h"
#include "ffi/registry.h"
#include "linear/cpu_kernels.h"

namespace onecat::linear {

namespace ffi = xla::ffi;

using F32 = ffi::Buffer<ffi::F32>;
using U8 = ffi::Buffer<ffi::U8>;
using LayerIndex = ffi::BufferR0<ffi::S32>;
using ResultF32 = ffi::Result<ffi::Buffer<ffi::F32>>;

inline constexpr double kParallelWork = 1 << 19;  // multiply-adds below which another thread costs more than it brings
inline constexpr int64_t kPassValues = 192 << 10;  // activations of one pass over the weights: what a second-level cache holds
inline constexpr int kPieces = 16;                // pieces of work per call, so that a slow thread isn't waited for long

inline bool is_zero(const float* row, int64_t k) {
  for (int64_t i = 0; i < k; ++i)
    if (row[i] != 0.0f) return false;
  return true;
}

// Activation rows per pass over the weights.
inline int rows_per_pass(int64_t k) {
  const int64_t rows = kPassValues / std::max<int64_t>(k, 1);
  return static_cast<int>(std::min<int64_t>(kMaxRows, std::max<int64_t>(16, rows)));
}

// Calls worker(activations, pieces) on every thread that takes part, for all rows in passes over the weights; a piece is a range
// of blocks of so many weight rows. Rows of zeros give zeros unseen. `cost_per_row` is what a weight costs beside its products,
// in multiply-adds.
template <class Worker>
void for_all_rows(ffi::ThreadPool& pool, const F32& x, F32& y, int weight_rows, double cost_per_row, const Worker& worker) {
  const IeeeFloats mode;
  const int64_t rows = x.dimensions()[0], k = x.dimensions()[1], n = y.dimensions()[1];
  const int64_t blocks = (n + weight_rows - 1) / weight_rows;
  const int most = rows_per_pass(k);
  int64_t row = 0;
  while (row < rows) {
    Activations a;
    a.count = 0;
    for (; row < rows && a.count < most; ++row) {
      const float* in = x.typed_data() + row * k;
      float* out = y.typed_data() + row * n;
      if (is_zero(in, k)) {
        std::fill(out, out + n, 0.0f);
      } else {
        a.x[a.count] = in;
        a.y[a.count++] = out;
      }
    }
    if (a.count == 0) continue;
    const double work = double(n) * double(k) * (a.count + cost_per_row);
    const int64_t grain = work < kParallelWork ? blocks : std::max<int64_t>(1, (blocks + kPieces - 1) / kPieces);
    parallel_workers(pool, blocks, grain, [&](Pieces& pieces) {
      const IeeeFloats mode;
      worker(a, pieces);
    });
  }
}

// The same for a vector kernel(activations, first tile, last tile).
template <class Kernel>
void for_all_tiles(ffi::ThreadPool& pool, const F32& x, F32& y, double cost_per_row, const Kernel& kernel) {
  for_all_rows(pool, x, y, kTileRows, cost_per_row, [&](const Activations& a, Pieces& pieces) {
    do kernel(a, pieces.first(), pieces.last());
    while (pieces.next());
  });
}

inline ffi::Error check_rows(const char* name, const F32& x, const F32& y, int64_t n, int64_t k) {
  if (x.dimensions().size() != 2 || x.dimensions()[1] != k)
    return invalid(name, ": x is ", shape_text(x.dimensions()), ", must be [M, ", k, "]");
  if (y.dimensions().size() != 2 || y.dimensions()[0] != x.dimensions()[0] || y.dimensions()[1] != n)
    return invalid(name, ": y is ", shape_text(y.dimensions()), ", must be [", x.dimensions()[0], ", ", n, "]");
  return ffi::Error::Success();
}

// Type of weights or scales, and its bytes.
inline bool dense_type(ffi::DataType type, DenseType* out, int64_t* bytes) {
  switch (type) {
    case ffi::DataType::F32: *out = DenseType::kF32, *bytes = 4; return true;
    case ffi::DataType::F16: *out = DenseType::kF16, *bytes = 2; return true;
    case ffi::DataType::BF16: *out = DenseType::kBF16, *bytes = 2; return true;
    default: return false;
  }
}

// Rows of y of a packed weight that holds `physical` ones.
inline ffi::Error check_features(const char* name, const F32& y, int64_t physical, int64_t* n) {
  *n = y.dimensions().size() == 2 ? y.dimensions()[1] : 0;
  if (*n <= physical && *n > physical - 32) return ffi::Error::Success();
  return invalid(name, ": y has ", *n, " features, the packed weight holds ", physical, ", a multiple of 32");
}

}  // namespace onecat::linear
