// FFI handlers of the dense and the NVFP4 linear on CPU.
#include <array>

#include "linear/cpu_amx.h"
#include "linear/cpu_rows.h"
#include "linear/cpu_scalar.h"

namespace onecat::linear {
namespace {

float e4m3(int bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float value = exponent ? (8 + mantissa) * 0x1p-10f : mantissa * 0x1p-9f;  // 2^-7 times the scaled mantissa
  for (int i = 0; i < exponent; ++i) value *= 2.0f;
  return bits & 0x80 ? -value : value;
}

const float* products() {
  struct alignas(64) Row {
    float values[16];
  };
  static const std::array<Row, 256> table = [] {
    std::array<Row, 256> t{};
    for (int bits = 0; bits < 256; ++bits)
      for (int code = 0; code < 16; ++code) t[bits].values[code] = kE2M1[code] * e4m3(bits);
    return t;
  }();
  return table[0].values;
}

#if defined(ONECAT_AMX)
// Runs call(activations in parts, first block, last block) on the matrix units. Every thread makes the parts for itself: that is
// less work than to fetch them from another one's cache.
template <class Call>
void on_matrix_units(ffi::ThreadPool& pool, const F32& x, F32& y, const Call& call) {
  constexpr double kCost = 2.0;  // decoding a weight, in multiply-adds
  for_all_rows(pool, x, y, kAmxRows, kCost, [&](const Activations& a, Pieces& pieces) {
    const AmxRows rows(a, x.dimensions()[1]);
    do call(rows, pieces.first(), pieces.last());
    while (pieces.next());
  });
}
#endif

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
  int64_t n;
  if (ffi::Error error = check_features("nvfp4 linear", *y, physical_n, &n); error.failure()) return error;
  if (ffi::Error error = check_rows("nvfp4 linear", x, *y, n, k); error.failure()) return error;
  int64_t layer;
  if (std::string text = pick_layer(index.typed_data()[0], mul, add, c[0], &layer); !text.empty()) return invalid("nvfp4 linear: ", text);

  const Nvfp4Weight weight{codes.typed_data() + layer * physical_n * k / 2, scales.typed_data() + layer * physical_n * k / 16,
                           global.typed_data() + layer * physical_n, products(), c[2], n};
  const Isa isa = cpu_isa();
#if defined(ONECAT_AMX)
  if (isa == Isa::kAmx) {
    on_matrix_units(pool, x, *y, [&](const AmxRows& a, int64_t first, int64_t last) { amx_nvfp4(weight, a, first, last); });
    return ffi::Error::Success();
  }
#endif
  const Kernels& table = kernels(isa);
  for_all_tiles(pool, x, *y, 2.0, [&](const Activations& a, int64_t first, int64_t last) { table.nvfp4(weight, a, first, last); });
  return ffi::Error::Success();
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
  if (std::string text = pick_layer(index.typed_data()[0], mul, add, d[0], &layer); !text.empty()) return invalid("dense linear: ", text);

  const char* data = static_cast<const char*>(w.untyped_data()) + layer * d[1] * d[2] * bytes;
  const DenseWeight weight{data, type, d[2], d[1]};
  const Isa isa = cpu_isa();
#if defined(ONECAT_AMX)
  if (isa == Isa::kAmx && type == DenseType::kBF16 && d[2] % kAmxUnitK == 0) {
    on_matrix_units(pool, x, *y, [&](const AmxRows& a, int64_t first, int64_t last) { amx_bf16(weight, a, first, last); });
    return ffi::Error::Success();
  }
#endif
  const Kernels& table = kernels(isa);
  for_all_tiles(pool, x, *y, 0.0, [&](const Activations& a, int64_t first, int64_t last) { table.dense(weight, a, first, last); });
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
