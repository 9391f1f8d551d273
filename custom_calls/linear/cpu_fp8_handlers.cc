// FFI handler of the FP8 linear on CPU.
#include "linear/cpu_rows.h"

namespace onecat::linear {
namespace {

ffi::Error Fp8(ffi::ThreadPool pool, F32 x, U8 codes, F32 scales, LayerIndex index, ResultF32 y, int32_t mul, int32_t add) {
  const auto c = codes.dimensions(), s = scales.dimensions();
  if (c.size() != 5 || c[3] != kTileRows || c[4] != 32)
    return invalid("fp8 linear: codes are ", shape_text(c), ", must be [L, N / 8, K / 32, 8, 32]");
  const int64_t tiles = c[1], units = c[2], physical_n = tiles * kTileRows, k = units * 32, groups = (k + 127) / 128;
  const bool per_row = has_shape(s, {c[0], physical_n});
  if (!per_row && !has_shape(s, {c[0], tiles, groups, kTileRows}))
    return invalid("fp8 linear: scales are ", shape_text(s), ", must be [", c[0], ", ", physical_n, "] or [", c[0], ", ", tiles,
                   ", ", groups, ", 8]");
  int64_t n, layer;
  if (ffi::Error error = check_features("fp8 linear", *y, physical_n, &n); error.failure()) return error;
  if (ffi::Error error = check_rows("fp8 linear", x, *y, n, k); error.failure()) return error;
  if (std::string text = pick_layer(index.typed_data()[0], mul, add, c[0], &layer); !text.empty())
    return invalid("fp8 linear: ", text);

  const float* scale = scales.typed_data() + layer * physical_n * (per_row ? 1 : groups);
  const Fp8Weight weight{codes.typed_data() + layer * physical_n * k, per_row ? scale : nullptr, per_row ? nullptr : scale,
                         units, groups, n};
  const Kernels& table = kernels(cpu_isa());
  for_all_tiles(pool, x, *y, 2.0, [&](const Activations& a, int64_t first, int64_t last) { table.fp8(weight, a, first, last); });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kFp8, Fp8,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<F32>()
                           .Arg<U8>()
                           .Arg<F32>()
                           .Arg<LayerIndex>()
                           .Ret<F32>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add"));

const Registration kRegisterFp8("onecat_fp8_linear_cpu_v1", "cpu", kFp8);

}  // namespace
}  // namespace onecat::linear
