// FFI handler that looks rows of a table up, as float32.
#include "ffi/float_bits.h"
#include "ffi/operands.h"
#include "ffi/registry.h"

namespace onecat::linear {
namespace {

namespace ffi = xla::ffi;

using Ids = ffi::Buffer<ffi::S32>;
using ResultF32 = ffi::Result<ffi::Buffer<ffi::F32>>;

template <class T, class Convert>
void copy_row(const void* table, int64_t row, int64_t k, const Convert& convert, float* to) {
  const T* from = static_cast<const T*>(table) + row * k;
  for (int64_t i = 0; i < k; ++i) to[i] = convert(from[i]);
}

ffi::Error LookUp(ffi::AnyBuffer table, Ids ids, ResultF32 rows) {
  const auto t = table.dimensions();
  const int64_t count = static_cast<int64_t>(ids.element_count());
  Storage storage;
  if (!storage_of(table.element_type(), &storage) || (storage != Storage::kF32 && storage != Storage::kF16 && storage != Storage::kBF16))
    return invalid("look-up: the table has element type ", static_cast<int>(table.element_type()),
                   ", must be float32, float16 or bfloat16");
  if (t.size() != 2) return invalid("look-up: the table is ", shape_text(t), ", must be [N, K]");
  if (static_cast<int64_t>(rows->element_count()) != count * t[1])
    return invalid("look-up: rows are ", shape_text(rows->dimensions()), ", must be [", count, ", ", t[1], "]");
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = ids.typed_data()[i];
    if (row < 0 || row >= t[0]) return invalid("look-up: row ", row, " is outside 0 .. ", t[0] - 1);
    float* to = rows->typed_data() + i * t[1];
    switch (storage) {
      case Storage::kF32: copy_row<float>(table.untyped_data(), row, t[1], [](float v) { return v; }, to); break;
      case Storage::kF16: copy_row<uint16_t>(table.untyped_data(), row, t[1], f32_of_f16, to); break;
      default: copy_row<uint16_t>(table.untyped_data(), row, t[1], f32_of_bf16, to); break;
    }
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kLookUp, LookUp, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<Ids>().Ret<ffi::Buffer<ffi::F32>>());

const Registration kRegisterLookUp("onecat_look_up_cpu_v1", "cpu", kLookUp);

}  // namespace
}  // namespace onecat::linear
