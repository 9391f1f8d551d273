// FFI handler of the INT4 linear on CPU.
#include "linear/cpu_rows.h"

namespace onecat::linear {
namespace {

ffi::Error Int4(ffi::ThreadPool pool, F32 x, U8 codes, ffi::AnyBuffer scales, U8 zeros, LayerIndex index, ResultF32 y,
                int32_t mul, int32_t add, int32_t group) {
  const auto c = codes.dimensions(), s = scales.dimensions(), z = zeros.dimensions();
  DenseType type;
  int64_t bytes;
  if (!dense_type(scales.element_type(), &type, &bytes))
    return invalid("int4 linear: scales have element type ", static_cast<int>(scales.element_type()),
                   ", must be float32, float16 or bfloat16");
  if (c.size() != 5 || c[3] != kTileRows || c[4] != kLanes)
    return invalid("int4 linear: codes are ", shape_text(c), ", must be [L, N / 8, K / 32, 8, 16]");
  const int64_t tiles = c[1], units = c[2], physical_n = tiles * kTileRows, k = units * 32;
  if (group < 1 || group % 32 || k % group)
    return invalid("int4 linear: groups of ", group, " k, must be a multiple of 32 that divides K, which is ", k);
  const int64_t groups = k / group;
  if (!has_shape(s, {c[0], tiles, groups, kTileRows}) || !has_shape(z, {c[0], tiles, groups, kTileRows}))
    return invalid("int4 linear: scales are ", shape_text(s), " and zero points ", shape_text(z), ", must be [", c[0], ", ",
                   tiles, ", ", groups, ", 8]");
  int64_t n, layer;
  if (ffi::Error error = check_features("int4 linear", *y, physical_n, &n); error.failure()) return error;
  if (ffi::Error error = check_rows("int4 linear", x, *y, n, k); error.failure()) return error;
  if (std::string text = pick_layer(index.typed_data()[0], mul, add, c[0], &layer); !text.empty())
    return invalid("int4 linear: ", text);

  const int64_t first = layer * physical_n * groups;
  const Int4Weight weight{codes.typed_data() + layer * physical_n * k / 2,
                          static_cast<const char*>(scales.untyped_data()) + first * bytes,
                          zeros.typed_data() + first, type, units, groups, n};
  const Kernels& table = kernels(cpu_isa());
  for_all_tiles(pool, x, *y, 2.0, [&](const Activations& a, int64_t first, int64_t last) { table.int4(weight, a, first, last); });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kInt4, Int4,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<F32>()
                           .Arg<U8>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<U8>()
                           .Arg<LayerIndex>()
                           .Ret<F32>()
                           .Attr<int32_t>("mul")
                           .Attr<int32_t>("add")
                           .Attr<int32_t>("group"));

const Registration kRegisterInt4("onecat_int4_linear_cpu_v1", "cpu", kInt4);

}  // namespace
}  // namespace onecat::linear
