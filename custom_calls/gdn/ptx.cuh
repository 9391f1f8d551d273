// Arithmetic of the GDN kernels, with every rounding spelled out: the compiler may contract nothing, so that a row has the same
// bits in every kernel.
#pragma once
#include <cuda_fp16.h>

namespace onecat::gdn {

using u32 = unsigned int;

__device__ __forceinline__ float2 unpack(u32 pair) { return __half22float2(*reinterpret_cast<const __half2*>(&pair)); }
__device__ __forceinline__ u32 pack(float a, float b) {
  const __half2 h = __floats2half2_rn(a, b);
  return *reinterpret_cast<const u32*>(&h);
}

// A number, asked for here and not where it turns out to be needed: several are under way at once.
__device__ __forceinline__ int load_now(const int* p) {
  int x;
  asm volatile("ld.global.s32 %0,[%1];" : "=r"(x) : "l"(p));
  return x;
}

// 1 / (1 + exp(-x)) by the approximate powers of two and reciprocals, which err by about one unit in the last place.
__device__ __forceinline__ float sigmoid(float x) {
  float power, part;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(power) : "f"(__fmul_rn(x, -1.4426950408889634f)));
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(part) : "f"(__fadd_rn(1.0f, power)));
  return part;
}
__device__ __forceinline__ float silu(float x) { return __fmul_rn(x, sigmoid(x)); }

// -exp(a_log) softplus(a + dt_bias), the logarithm of the decay.
__device__ __forceinline__ float log_decay(float a, float a_log, float dt_bias) {
  const float x = __fadd_rn(a, dt_bias);
  const float softplus = __fadd_rn(fmaxf(x, 0.0f), log1pf(expf(-fabsf(x))));
  return __fmul_rn(-expf(a_log), softplus);
}

// Taps are added oldest first, in every form.
__device__ __forceinline__ float convolve(const float (&tap)[4], float x0, float x1, float x2, float x3) {
  return __fmaf_rn(tap[3], x3, __fmaf_rn(tap[2], x2, __fmaf_rn(tap[1], x1, __fmul_rn(tap[0], x0))));
}

__device__ __forceinline__ float dot(const float4& a, const float4& b) {
  return __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmul_rn(a.x, b.x))));
}
__device__ __forceinline__ float4 scaled(const float4& a, float f) {
  return make_float4(__fmul_rn(a.x, f), __fmul_rn(a.y, f), __fmul_rn(a.z, f), __fmul_rn(a.w, f));
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int i = 16; i; i >>= 1) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
  return x;
}

}  // namespace onecat::gdn
