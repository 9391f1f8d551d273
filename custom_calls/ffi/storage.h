// The element types that caches and activations may have. Compiled for several instruction sets: keep XLA's headers out,
// or the linker may merge their inline functions with copies that need a newer processor.
#pragma once
#include <cstdint>

namespace onecat {

enum class Storage { kF32, kF16, kBF16, kE4M3, kE5M2 };

namespace {

constexpr int64_t bytes_of(Storage type) {
  return type == Storage::kF32 ? 4 : type == Storage::kF16 || type == Storage::kBF16 ? 2 : 1;
}

}  // namespace
}  // namespace onecat
