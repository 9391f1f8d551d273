// The linear on a processor's matrix units (AMX), for NVFP4 and bfloat16 weights, which are exact in bfloat16. Another contract
// than that of cpu_kernels.h, so its bits differ from those of the vector instruction sets:
//
//   x is the exact sum of three bfloat16 numbers: the first, the next and the last eight bits of its significand.
//   Output (m, n) has a running sum per part. For each unit of 32 consecutive k, in ascending order, the products of even k and
//   those of odd k are two chains of 16 fused multiply-adds that start from zero; their sum is added to the running sum.
//   The parts are added as (first + next) + last, and the result of NVFP4 is multiplied by the row's global scale.
//   Subnormal numbers count as zero, and parts of an x below 2^-110 may be.
//
// Neither the number of rows, nor the split over threads, nor blocking changes any of these operations.
#pragma once
#include "linear/cpu_kernels.h"

namespace onecat::linear {

constexpr int kAmxRows = 16;   // weight rows of a block: the unit of work
constexpr int kAmxUnitK = 32;  // K must be a multiple of it

// Activation rows in parts: groups of up to 16 rows, whose parts, so many columns each, stand side by side in tiles of up to 16.
// While it lives the calling thread's matrix units are set up for it. It belongs on the stack: few rows need no other memory.
class AmxRows {
 public:
  AmxRows(const Activations& rows, int64_t k);
  ~AmxRows();
  AmxRows(const AmxRows&) = delete;
  AmxRows& operator=(const AmxRows&) = delete;

  const Activations& rows;
  const int width;  // columns of a part: 4, 8 or 16
  // [groups, units, tiles, 16, columns of the tile] neighbours along k. A tile whose rows cross from one cache line into the next
  // takes seven times as long to load, so the first one begins a line.
  uint32_t* const pairs;

 private:
  static constexpr int64_t kFew = 16 << 10;
  alignas(64) uint32_t few_[kFew];
};

// Compute the outputs of blocks first .. last - 1 of weight rows for all activation rows.
void amx_nvfp4(const Nvfp4Weight&, const AmxRows&, int64_t first, int64_t last);
void amx_bf16(const DenseWeight&, const AmxRows&, int64_t first, int64_t last);

}  // namespace onecat::linear
