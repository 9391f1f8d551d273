// Which kernel takes a linear, and how it shares out a block's memory: pure functions of the shapes and of the device.
#pragma once
#include <cstdint>

#include "ffi/cuda_launch.h"
#include "linear/gpu_args.h"

namespace onecat::linear {

constexpr int kMaxRows = 64;


// One weight kind: "nvfp4" with units of 64 k, say.
struct Kind {
  const char* name;
  int m8n8k4_unit_k;
};

// What the body for m16n8k16 takes of shared memory per step, per group of scales that covers `halves` times 32 k (0: none), and
// per group of steps; and up to how many tiles per multiprocessor that of m16n8k16_direct.cuh is faster (0: it has no decoder).
struct StepBytes {
  int step, scales, halves, once, direct_tiles;
};

// The body for m8n8k4. How many warps share K decides the order of summation, so it depends on the weight alone; the activation
// rows per block change no order.
struct BlockTactic {
  const char* kernel;
  int rows, warps;
};
constexpr BlockTactic kBlockTactics[] = {
    {"linear_x8_w4", 8, 4}, {"linear_x16_w4", 16, 4}, {"linear_x32_w4", 32, 4},
    {"linear_x8_w8", 8, 8}, {"linear_x16_w8", 16, 8}, {"linear_x32_w8", 32, 8}};
const BlockTactic& block_tactic(int64_t m, int64_t blocks);

// The body for m16n8k16: its kernel's rows at a time and blocks per cluster, which depend on m and on the weight; what it is
// launched with.
struct StreamTactic {
  int rows, cluster;
  unsigned blocks, shared_bytes;
};

// Fills what `args` lacks for the body. False when a block's shared memory is too small.
bool stream_tactic(const Device& device, int image, const StepBytes& bytes, LinearArgs* args, StreamTactic* out);

// A kernel of m16n8k16_direct.cuh: a cluster's blocks have the parts of K, `parts` each.
struct DirectKernel {
  int rows, cluster, parts;
};
constexpr DirectKernel kDirectKernels[] = {{8, 1, 1}, {8, 1, 2}, {8, 2, 2}, {16, 1, 1}, {16, 2, 1}, {16, 4, 1}};

// Whether that body takes a weight: for every number of rows, for its order of summation is another.
bool takes_direct(const Device& device, int image, const StepBytes& bytes, const LinearArgs& args);
DirectKernel direct_kernel(const LinearArgs& args);

// Fills what `args` lacks for it, with so many clusters at once; returns the bytes of shared memory.
unsigned direct_tactic(const Device& device, const DirectKernel& kernel, int clusters, LinearArgs* args);

// Shared memory of `steps` steps that are copied at once; sets the groups of scales that they may touch.
int group_bytes(const StepBytes& bytes, int steps, int* group_scales);

}  // namespace onecat::linear
