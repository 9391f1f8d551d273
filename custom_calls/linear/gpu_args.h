// What the launching side and the kernels share. Included by both compilers: built-in types only.
#pragma once

namespace onecat::linear {

enum ScaleType { kScaleF32, kScaleF16, kScaleBF16 };

// y[m][n] = sum_k x[m][k] * w[n][k], layer *index * mul + add of the stack. Packed layouts: packing.py.
struct LinearArgs {
  const unsigned char* codes;  // [layers, blocks, units, 1024]
  const void* scales;          // NVFP4 [layers, blocks, units, 128]; FP8 and INT4 [layers, blocks, groups, 32]
  const float* rows;           // [layers, 32 * blocks] factors of rows; unused by INT4 and by FP8 with scales of 128 k
  const void* x;               // float16 [m, k]; unused by the expansion
  const int* index;
  void* out;                   // [m, n] float16 or float32; expansion: float16 [n, k]
  int mul, add, layers;
  int blocks, units;           // of 32 rows, of 1024 bytes of codes
  int m, n, k;
  int out_is_f16;
  int groups;                  // scales per row
  int scale_type;              // INT4
  unsigned group_reciprocal;   // INT4: ceil(2^32 / units of 32 k per group), 0 for one unit
  const unsigned char* zeros;  // INT4 [layers, blocks, groups, 32]
};

constexpr int kExpandWarps = 8;   // per block of the expansion
constexpr int kBlockRows = 32;    // weight rows per block
constexpr int kUnitCodes = 1024;  // bytes of a block's unit

}  // namespace onecat::linear
