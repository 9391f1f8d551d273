// What the launching side and the kernels share. Included by both compilers: built-in types only.
#pragma once

namespace onecat::linear {

enum ScaleType { kScaleF32, kScaleF16, kScaleBF16 };

// y[m][n] = sum_k x[m][k] * w[n][k], layer *index * mul + add of the stack. Packed layouts: packing.py.
struct LinearArgs {
  const unsigned char* codes;  // [layers, blocks, units, bytes]; unquantised: float16 [layers, n, k]
  const void* scales;          // NVFP4 [layers, blocks, units, bytes]; FP8 and INT4 [layers, blocks, groups, rows]
  const float* rows;           // [layers, physical n] factors of rows; unused by INT4 and by FP8 with scales of 128 k
  const void* x;               // float16 [m, k]; unused by the expansion
  const int* index;
  void* out;                   // [m, n] float16 or float32; expansion: float16 [n, k]
  int mul, add, layers;
  int blocks, units;           // of 32 rows and of 1024 bytes of codes (m8n8k4); of 16 rows and of 64 k (m16n8k16)
  int m, n, k;
  int out_is_f16;
  int groups;                  // scales per row
  int scale_type;              // INT4
  unsigned group_reciprocal;   // INT4: ceil(2^32 / units of 32 k per group), 0 for one unit
  const unsigned char* zeros;  // INT4 [layers, blocks, groups, rows]
  int staged;                  // m16n8k16: steps of a warp whose activations lie in shared memory,
  int group, group_bytes;      // steps that are copied at once, a multiple of kStreams, and the shared memory that they take,
  int group_scales;            // groups of scales that such a group may touch,
  int ring;                    // groups on their way or in use
  int held;                    // steps of a warp whose activations of 8 rows stay in registers: all or 0
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // kernels for sm_70 take what precedes, and no register more
  int rounds, batch;           // m16n8k16_direct: steps of a warp in a part; tiles whose sums wait
#endif
};

// The body for m16n8k16 with up to X activation rows: sums of kRing tiles are on their way from the kStreams warps that
// multiply to the one that adds.
constexpr int kStreams = 16, kMostRows = 16, kMostGroups = 8, kHeldSteps = 5, kHeldGroup = 5;
template <int X>
struct SharedMemory {
  static constexpr int kRing = X == 8 ? 3 : 1;
  static constexpr int kSums = kRing * kStreams * X * 64;  // bytes
  static constexpr int kStep = kStreams * X * 128;         // bytes per staged step of every warp
};

// The body of m16n8k16_direct.cuh: a warp has up to kDirectRounds steps of each of up to kDirectParts parts of K.
constexpr int kDirectWarps = 16, kDirectRounds = 6, kDirectParts = 4;

constexpr int kTileRows = 16, kStepK = 64;  // of the body for m16n8k16
constexpr int kExpandWarps = 8;             // per block of the expansion

}  // namespace onecat::linear
