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
  return __ldg(reinterpret_cast<const uint4*>(static_cast<const __half*>(a.x) + static_cast<size_t>(row) * a.k + k));
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
template <int X>
using Partials = float[kWarps][kBlockRows][X + 1];

// Adds the partials in warp order and stores them. A layer outside the stack gives NaN: a handler can't read the index.
template <int X>
__device__ __forceinline__ void reduce_and_store(const Nvfp4Args& a, const Partials<X>& partials, int layer, int m0) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBlockRows * X; i += kWarps * 32) {
    const int row = i % kBlockRows, m = i / kBlockRows, n = blockIdx.x * kBlockRows + row;
    if (m0 + m >= a.m || n >= a.n) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partials[w][row][m];
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

// Streams one warp's units (warp, warp + 8, ...) of the block through registers, D ahead, and calls use(unit number, Unit).
template <int D, class Use>
__device__ __forceinline__ void stream_units(const Nvfp4Args& a, int layer, int lane_bytes, int scale_bytes, const Use& use) {
  const int warp = threadIdx.x >> 5;
  const size_t first = (static_cast<size_t>(layer) * a.blocks + blockIdx.x) * a.units;
  const unsigned char* codes = a.codes + first * kUnitCodes + lane_bytes;
  const unsigned char* scales = a.scales + first * kUnitScales + scale_bytes;
  Unit ring[D];
  auto load = [&](Unit& slot, int u) {
    slot.codes[0] = load_weights(codes + static_cast<size_t>(u) * kUnitCodes);
    slot.codes[1] = load_weights(codes + static_cast<size_t>(u) * kUnitCodes + 512);
    slot.scales = load_scales(scales + static_cast<size_t>(u) * kUnitScales);
  };
#pragma unroll
  for (int d = 0; d < D; ++d) {
    if (warp + d * kWarps < a.units) load(ring[d], warp + d * kWarps);
  }
  for (int u0 = warp; u0 < a.units; u0 += D * kWarps) {
#pragma unroll
    for (int d = 0; d < D; ++d) {
      const int u = u0 + d * kWarps;
      if (u < a.units) {
        const Unit unit = ring[d];
        if (u + D * kWarps < a.units) load(ring[d], u + D * kWarps);
        use(u, unit);
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
