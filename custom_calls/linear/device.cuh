// What the kernels of both matrix-instruction families share: operands, the layer, results.
#pragma once
#include "linear/gpu_args.h"
#include "linear/ptx.cuh"

namespace onecat::linear {

__device__ __forceinline__ u32 component(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Eight activations of row `row` from k on, zeros outside the matrix.
__device__ __forceinline__ uint4 load_activations(const LinearArgs& a, int row, int k) {
  if (row >= a.m || k >= a.k) return make_uint4(0, 0, 0, 0);
  return load16(static_cast<const __half*>(a.x) + row * a.k + k);
}

// The layer's number, or -1 when it is outside the stack.
__device__ __forceinline__ int layer_of(const LinearArgs& a) {
  const int layer = *a.index * a.mul + a.add;
  return layer >= 0 && layer < a.layers ? layer : -1;
}

__device__ __forceinline__ void store_output(const LinearArgs& a, int m, int n, float value) {
  const size_t at = static_cast<size_t>(m) * a.n + n;
  if (a.out_is_f16) {
    static_cast<__half*>(a.out)[at] = __float2half_rn(value);
  } else {
    static_cast<float*>(a.out)[at] = value;
  }
}

// A layer outside the stack gives NaN: a handler can't read the index.
template <class D>
__device__ __forceinline__ float row_scale_or_nan(const LinearArgs& a, int layer, int n) {
  return layer < 0 ? __int_as_float(0x7fc00000) : D::row_scale(a, layer, n);
}

// Two half2 of products * factor, rounded once to float16.
__device__ __forceinline__ u32 finish_pair(u32 product, float factor) {
  const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&product));
  const __half2 h = __floats2half2_rn(f.x * factor, f.y * factor);
  return *reinterpret_cast<const u32*>(&h);
}

}  // namespace onecat::linear
