// FFI handlers of the linear on CPU: validation, rows of zeros, splitting over threads.
#include <algorithm>
#include <array>
#include <cstring>

#include "ffi/message.h"
#include "ffi/parallel.h"
#include "ffi/registry.h"
#include "linear/cpu_kernels.h"

namespace ffi = xla::ffi;

namespace onecat::linear {
namespace {

using F32 = ffi::Buffer<ffi::F32>;
using U8 = ffi::Buffer<ffi::U8>;
using LayerIndex = ffi::BufferR0<ffi::S32>;
using ResultF32 = ffi::Result<ffi::Buffer<ffi::F32>>;

constexpr double kParallelWork = 1 << 19;  // multiply-adds below which another thread costs more than it brings
constexpr int64_t kPassValues = 192 << 10;  // activations of one pass over the weights: what a second-level cache holds
constexpr int kPieces = 16;                // pieces of work per call, so that a slow thread isn't waited for long

const float* e4m3_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t{};
    for (int bits = 0; bits < 256; ++bits) {
      const int exponent = bits >> 3 & 15, mantissa = bits & 7;
      float value = exponent ? (8 + mantissa) * 0x1p-10f : mantissa * 0x1p-9f;  // 2^-7 times the scaled mantissa
      for (int i = 0; i < exponent; ++i) value *= 2.0f;
      t[bits] = bits & 0x80 ? -value : value;
    }
    return t;
  }();
  return table.data();
}

bool is_zero(const float* row, int64_t k) {
  for (int64_t i = 0; i < k; ++i)
    if (row[i] != 0.0f) return false;
  return true;
}

// Activation rows per pass over the weights.
int rows_per_pass(int64_t k) {
  const int64_t rows = kPassValues / std::max<int64_t>(k, 1);
  return static_cast<int>(std::min<int64_t>(kMaxRows, std::max<int64_t>(16, rows)));
}

// Runs kernel(activations, first tile, last tile) over all rows. Rows of zeros give zeros unseen.
template <class Kernel>
void for_all_rows(ffi::ThreadPool& pool, const F32& x, F32& y, double cost_per_row, const Kernel& kernel) {
  const IeeeFloats mode;
  const int64_t rows = x.dimensions()[0], k = x.dimensions()[1], n = y.dimensions()[1];
  const int64_t tiles = (n + kTileRows - 1) / kTileRows;
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
    const int64_t grain = work < kParallelWork ? tiles : std::max<int64_t>(1, (tiles + kPieces - 1) / kPieces);
    parallel_for(pool, tiles, grain, [&](int64_t first, int64_t last) {
      const IeeeFloats mode;
      kernel(a, first, last);
    });
  }
}

// Layer of the stack, or an error text.
std::string pick_layer(const LayerIndex& index, int32_t mul, int32_t add, int64_t layers, int64_t* layer) {
  *layer = static_cast<int64_t>(index.typed_data()[0]) * mul + add;
  if (*layer >= 0 && *layer < layers) return "";
  return message("layer ", index.typed_data()[0], " * ", mul, " + ", add, " = ", *layer, " is outside 0 .. ", layers - 1);
}

ffi::Error check_rows(const char* name, const F32& x, const F32& y, int64_t n, int64_t k) {
  if (x.dimensions().size() != 2 || x.dimensions()[1] != k)
    return invalid(name, ": x is ", shape_text(x.dimensions()), ", must be [M, ", k, "]");
  if (y.dimensions().size() != 2 || y.dimensions()[0] != x.dimensions()[0] || y.dimensions()[1] != n)
    return invalid(name, ": y is ", shape_text(y.dimensions()), ", must be [", x.dimensions()[0], ", ", n, "]");
  return ffi::Error::Success();
}

ffi::Error Nvfp4(ffi::ThreadPool pool, F32 x, U8 codes, U8 scales, F32 global, LayerIndex index, ResultF32 y, int32_t mul,
                 int32_t add) {
  const auto c = codes.dimensions(), s = scales.dimensions(), g = global.dimensions();
  if (c.size() != 5 || c[3] != kTileRows || c[4] != kLanes)
    return invalid("nvfp4 linear: codes are ", shape_text(c), ", must be [L, N / 8, K / 32, 8, 16]");
  if (s.size() != 5 || s[0] != c[0] || s[1] != c[1] || s[2] != c[2] || s[3] != kTileRows || s[4] != 2)
    return invalid("nvfp4 linear: scales are ", shape_text(s), ", must be [", c[0], ", ", c[1], ", ", c[2], ", 8, 2]");
  const int64_t physical_n = c[1] * kTileRows, k = c[2] * 32;
  if (g.size() != 2 || g[0] != c[0] || g[1] != physical_n)
    return invalid("nvfp4 linear: global scales are ", shape_text(g), ", must be [", c[0], ", ", physical_n, "]");
  const int64_t n = y->dimensions().size() == 2 ? y->dimensions()[1] : 0;
  if (n > physical_n || n <= physical_n - 32)
    return invalid("nvfp4 linear: y has ", n, " features, the packed weight holds ", physical_n, ", a multiple of 32");
  if (ffi::Error error = check_rows("nvfp4 linear", x, *y, n, k); error.failure()) return error;
  int64_t layer;
  if (std::string text = pick_layer(index, mul, add, c[0], &layer); !text.empty()) return invalid("nvfp4 linear: ", text);

  const Nvfp4Weight weight{codes.typed_data() + layer * physical_n * k / 2, scales.typed_data() + layer * physical_n * k / 16,
                           global.typed_data() + layer * physical_n, e4m3_table(), c[2], n};
  const Kernels& table = kernels(cpu_isa());
  for_all_rows(pool, x, *y, 2.0, [&](const Activations& a, int64_t first, int64_t last) { table.nvfp4(weight, a, first, last); });
  return ffi::Error::Success();
}

bool dense_type(ffi::DataType type, DenseType* out, int64_t* bytes) {
  switch (type) {
    case ffi::DataType::F32: *out = DenseType::kF32, *bytes = 4; return true;
    case ffi::DataType::F16: *out = DenseType::kF16, *bytes = 2; return true;
    case ffi::DataType::BF16: *out = DenseType::kBF16, *bytes = 2; return true;
    default: return false;
  }
}

ffi::Error Dense(ffi::ThreadPool pool, F32 x, ffi::AnyBuffer w, LayerIndex index, ResultF32 y, int32_t mul, int32_t add) {
  const auto d = w.dimensions();
  DenseType type;
  int64_t bytes;
  if (!dense_type(w.element_type(), &type, &bytes))
    return invalid("dense linear: the weight has element type ", static_cast<int>(w.element_type()),
                   ", must be float32, float16 or bfloat16");
  if (d.size() != 3) return invalid("dense linear: the weight is ", shape_text(d), ", must be [L, N, K]");
  if (ffi::Error error = check_rows("dense linear", x, *y, d[1], d[2]); error.failure()) return error;
  int64_t layer;
  if (std::string text = pick_layer(index, mul, add, d[0], &layer); !text.empty()) return invalid("dense linear: ", text);

  const char* data = static_cast<const char*>(w.untyped_data()) + layer * d[1] * d[2] * bytes;
  const DenseWeight weight{data, type, d[2], d[1]};
  const Kernels& table = kernels(cpu_isa());
  for_all_rows(pool, x, *y, 0.0, [&](const Activations& a, int64_t first, int64_t last) { table.dense(weight, a, first, last); });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kNvfp4, Nvfp4,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<F32>()
                           .Arg<U8>()
                           .Arg<U8>()
                           .Arg<F32>()
                           .Arg<LayerIndex>()
                           .Ret<F32>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add"));
XLA_FFI_DEFINE_HANDLER(kDense, Dense,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<F32>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<LayerIndex>()
                           .Ret<F32>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add"));

const Registration kRegisterNvfp4("onecat_nvfp4_linear_cpu_v1", "cpu", kNvfp4);
const Registration kRegisterDense("onecat_dense_linear_cpu_v1", "cpu", kDense);

}  // namespace
}  // namespace onecat::linear
