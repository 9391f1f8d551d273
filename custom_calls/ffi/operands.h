// Reading and checking operands of a handler.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>

#include "ffi/message.h"
#include "ffi/storage.h"
#include "xla/ffi/api/ffi.h"

namespace onecat {

inline bool has_shape(xla::ffi::AnyBuffer::Dimensions have, std::initializer_list<int64_t> want) {
  return have.size() == want.size() && std::equal(want.begin(), want.end(), have.begin());
}

inline bool storage_of(xla::ffi::DataType type, Storage* out) {
  switch (type) {
    case xla::ffi::DataType::F32: *out = Storage::kF32; return true;
    case xla::ffi::DataType::F16: *out = Storage::kF16; return true;
    case xla::ffi::DataType::BF16: *out = Storage::kBF16; return true;
    case xla::ffi::DataType::F8E4M3FN: *out = Storage::kE4M3; return true;
    case xla::ffi::DataType::F8E5M2: *out = Storage::kE5M2; return true;
    default: return false;
  }
}

// Layer index * mul + add of a stack, or an error text.
inline std::string pick_layer(int64_t index, int32_t mul, int32_t add, int64_t layers, int64_t* layer) {
  *layer = index * mul + add;
  if (*layer >= 0 && *layer < layers) return "";
  return message("layer ", index, " * ", mul, " + ", add, " = ", *layer, " is outside 0 .. ", layers - 1);
}

}  // namespace onecat
