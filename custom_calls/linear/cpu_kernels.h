// What the CPU kernels of the linear compute. One contract for every vector instruction set, so that results don't depend on it;
// cpu_amx.h has that of matrix units.
//
//   Output (m, n) has 16 running sums. For each group of 16 consecutive k, in ascending order,
//     sum[i] = fma(w[n][16 g + i], x[m][16 g + i], sum[i]).
//   The last group is filled up with zeros. The 16 sums are folded in halves: 16 -> 8 -> 4 -> 2 -> 1, lane i with lane
//   i + half.
//   NVFP4: w is E2M1 * E4M3 (exact in float32) and the folded sum is multiplied by the row's global scale.
//   FP8: w is E4M3 * 2^-8 (exact) and the folded sum is multiplied by 2^8 times the row's scale; with a scale per 128 k, w is
//   that product with 2^8 times the scale (rounded once) and the sum is multiplied by one.
//   INT4: w is (code - zero) * scale, rounded once (exact for a 16-bit scale).
//
// Neither the number of rows, nor the split over threads, nor blocking changes any of these operations.
#pragma once
#include <cstdint>

#include "ffi/cpu_features.h"

namespace onecat::linear {

constexpr int kTileRows = 8;    // weight rows of a tile: the unit of work
constexpr int kMaxRows = 64;    // activation rows of one pass over the weights
constexpr int kLanes = 16;

enum class DenseType { kF32, kF16, kBF16 };

struct Activations {
  const float* x[kMaxRows];  // rows of k values
  float* y[kMaxRows];        // rows of n values
  int count;
};

struct Nvfp4Weight {
  const uint8_t* codes;   // [tiles, units, 8, 16]
  const uint8_t* scales;  // [tiles, units, 8, 2]
  const float* global;    // [n]
  const float* products;  // [256, 16] E4M3 times E2M1, by their bits; a row is a cache line
  int64_t units;          // K / 32
  int64_t n;
};

struct Fp8Weight {
  const uint8_t* codes;  // [tiles, units, 8, 32]
  const float* rows;     // [n] scales, or null
  const float* blocks;   // [tiles, groups, 8] scales of 128 k each, or null
  int64_t units;         // K / 32
  int64_t groups;        // K / 128, rounded up
  int64_t n;
};

struct Int4Weight {
  const uint8_t* codes;  // [tiles, units, 8, 16]
  const void* scales;    // [tiles, groups, 8]
  const uint8_t* zeros;  // [tiles, groups, 8]
  DenseType type;        // of the scales
  int64_t units;         // K / 32
  int64_t groups;
  int64_t n;
};

struct DenseWeight {
  const void* data;  // [n, k]
  DenseType type;
  int64_t k;
  int64_t n;
};

// Compute the outputs of weight tiles first .. last - 1 for all activation rows.
struct Kernels {
  void (*nvfp4)(const Nvfp4Weight&, const Activations&, int64_t first, int64_t last);
  void (*fp8)(const Fp8Weight&, const Activations&, int64_t first, int64_t last);
  void (*int4)(const Int4Weight&, const Activations&, int64_t first, int64_t last);
  void (*dense)(const DenseWeight&, const Activations&, int64_t first, int64_t last);
};

extern const Kernels kGenericKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

inline const Kernels& kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return kAvx512Kernels;
  if (isa == Isa::kAvx2) return kAvx2Kernels;
#endif
  (void)isa;
  return kGenericKernels;
}

}  // namespace onecat::linear
