// What the launching side and the kernels share. Included by both compilers: built-in types only.
#pragma once

namespace onecat::linear {

// y[m][n] = global[n] * sum_k x[m][k] * w[n][k], layer *index * mul + add of the stack. Packed layouts: packing.py.
struct Nvfp4Args {
  const unsigned char* codes;   // [layers, blocks, units, 1024]
  const unsigned char* scales;  // [layers, blocks, units, 128]
  const float* global;          // [layers, 32 * blocks]
  const void* x;                // float16 [m, k]; unused by the expansion
  const int* index;
  void* out;                    // [m, n] float16 or float32; expansion: float16 [n, k]
  int mul, add, layers;
  int blocks, units;            // of 32 rows, of 64 k
  int m, n, k;
  int out_is_f16;
};

constexpr int kExpandWarps = 8;    // per block of the expansion
constexpr int kBlockRows = 32;     // weight rows per block
constexpr int kUnitK = 64;
constexpr int kUnitCodes = 1024;   // bytes of a block's unit
constexpr int kUnitScales = 128;

}  // namespace onecat::linear
