// Decoding, loads and the epilogue that both matrix-instruction families share.
#pragma once
#include <cuda_fp16.h>

#include "linear/gpu_args.h"

namespace onecat::linear {

using u32 = unsigned int;

// One packed word -> four half2 of code value * 2^-14 (bit order: packing.py).
__device__ __forceinline__ void decode_word(u32 w, u32 (&out)[4]) {
  out[0] = w & 0x8e008e00u;
  out[1] = ((w >> 3) & 0x0e000e00u) | ((w << 7) & 0x80008000u);
  out[2] = (w << 8) & 0x8e008e00u;
  out[3] = ((w << 5) & 0x0e000e00u) | ((w << 15) & 0x80008000u);
}

__device__ __forceinline__ u32 multiply2(u32 a, u32 b) {
  u32 r;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// E4M3 byte I of w, not negative -> half2 of its value * 2^6. The product with a code is then value * 2^-8, exact for every
// pair, subnormals included; the epilogue multiplies by 2^8.
template <int I>
__device__ __forceinline__ u32 scale_pair(u32 w) {
  return multiply2(__byte_perm(w, 0, I * 0x0101 | 4 << 4 | 4 << 12) << 7, 0x74007400u);
}
constexpr float kProductScale = 256.0f;

// Weights are read once: keep them out of the first-level cache.
__device__ __forceinline__ uint4 load_weights(const void* p) {
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(p));
  return r;
}

__device__ __forceinline__ u32 load_scales(const void* p) {
  u32 r;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(r) : "l"(p));
  return r;
}

// Eight activations of row `row` from k on, zeros outside the matrix.
__device__ __forceinline__ uint4 load_activations(const Nvfp4Args& a, int row, int k) {
  if (row >= a.m || k >= a.k) return make_uint4(0, 0, 0, 0);
  uint4 r;  // volatile: kept in order with the matrix instructions, else all loads of a step are hoisted and registers spill
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(static_cast<const __half*>(a.x) + row * a.k + k));
  return r;
}

// The layer's number, or -1 when it is outside the stack.
__device__ __forceinline__ int layer_of(const Nvfp4Args& a) {
  const int layer = *a.index * a.mul + a.add;
  return layer >= 0 && layer < a.layers ? layer : -1;
}

__device__ __forceinline__ void store_output(const Nvfp4Args& a, int m, int n, float value) {
  const size_t at = static_cast<size_t>(m) * a.n + n;
  if (a.out_is_f16) {
    static_cast<__half*>(a.out)[at] = __float2half_rn(value);
  } else {
    static_cast<float*>(a.out)[at] = value;
  }
}

// Partial sums of one block: [warp][weight row][activation row], padded against bank conflicts.
template <int W, int X>
using Partials = float[W][kBlockRows][X + 1];

// Adds the partials in warp order and stores them. A layer outside the stack gives NaN: a handler can't read the index.
template <int W, int X>
__device__ __forceinline__ void reduce_and_store(const Nvfp4Args& a, const Partials<W, X>& partials, int layer, int m0) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBlockRows * X; i += W * 32) {
    const int row = i % kBlockRows, m = i / kBlockRows, n = blockIdx.x * kBlockRows + row;
    if (m0 + m >= a.m || n >= a.n) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < W; ++w) sum += partials[w][row][m];
    const float scale = layer < 0 ? __int_as_float(0x7fc00000)
                                  : a.global[static_cast<size_t>(layer) * a.blocks * kBlockRows + n] * kProductScale;
    store_output(a, m0 + m, n, sum * scale);
  }
}

// Codes and scales of one unit as one lane reads them: 2 x 16 bytes and 4 bytes.
struct Unit {
  uint4 codes[2];
  u32 scales;
};

// Where one lane of a block reads its units.
struct UnitReader {
  const unsigned char* codes;
  const unsigned char* scales;
  int units;

  __device__ __forceinline__ UnitReader(const Nvfp4Args& a, int layer, int lane_bytes, int scale_bytes) : units(a.units) {
    const size_t first = (static_cast<size_t>(layer) * a.blocks + blockIdx.x) * a.units;
    codes = a.codes + first * kUnitCodes + lane_bytes;
    scales = a.scales + first * kUnitScales + scale_bytes;
  }
  // Nothing happens beyond the last unit.
  __device__ __forceinline__ void load(int u, Unit& out) const {
    if (u >= units) return;
    const unsigned char* c = codes + u * kUnitCodes;
    out.codes[0] = load_weights(c);
    out.codes[1] = load_weights(c + kUnitCodes / 2);
    out.scales = load_scales(scales + u * kUnitScales);
  }
};

// Streams one warp's pairs of units (warp, warp + W, ...) through registers, two pairs ahead, and calls use(unit number,
// Unit) in ascending order. More stages than two don't help: a warp has six scoreboards to wait on.
template <int W, class Use>
__device__ __forceinline__ void stream_units(const UnitReader& reader, const Use& use) {
  constexpr int kStages = 2;
  const int warp = threadIdx.x >> 5, pairs = (reader.units + 1) / 2;
  Unit ring[kStages][2];
#pragma unroll
  for (int d = 0; d < kStages; ++d)
#pragma unroll
    for (int i = 0; i < 2; ++i) reader.load(2 * (warp + d * W) + i, ring[d][i]);
  for (int p0 = warp; p0 < pairs; p0 += kStages * W) {
#pragma unroll
    for (int d = 0; d < kStages; ++d) {
      const int p = p0 + d * W;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int u = 2 * p + i;
        if (u >= reader.units) continue;
        use(u, ring[d][i]);
        reader.load(u + 2 * kStages * W, ring[d][i]);
      }
    }
  }
}

// Two half2 of products * global scale, rounded once to float16.
__device__ __forceinline__ u32 finish_pair(u32 product, float global) {
  const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&product));
  const __half2 h = __floats2half2_rn(f.x * global, f.y * global);
  return *reinterpret_cast<const u32*>(&h);
}

}  // namespace onecat::linear
