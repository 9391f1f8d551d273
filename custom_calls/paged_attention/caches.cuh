// How a cache's elements become float16 pairs. All expansions are exact but that of float32, which rounds once.
//
// kStored and kBytes: bytes of an element in the cache and in shared memory; where they differ, expand(from) gives the 16
// bytes. kFactor: what expanded values must be multiplied by. pair<i>(w): bytes i and i + 1 of a word; cross<i>(x, y): byte i
// of each of two words.
//
// By bits, E5M2 is the upper half of a float16, and E4M3 shifted right by one place is its value times 2^-8; there the codes
// of NaN read as 480, which writing to the cache never makes of finite values.
#pragma once
#include "paged_attention/ptx.cuh"

namespace onecat::paged_attention {

struct F16Cache {
  static constexpr int kStored = 2, kBytes = 2;
  static constexpr float kFactor = 1.0f;
};

struct F32Cache {
  static constexpr int kStored = 4, kBytes = 2;
  static constexpr float kFactor = 1.0f;
  static __device__ __forceinline__ uint4 expand(const u8* from) { return narrow(load_once(from), load_once(from + 16)); }
};

// Byte i of a word, and i of another, in the upper halves of two float16.
template <int i>
__device__ __forceinline__ u32 spread(u32 w) {
  return __byte_perm(w, 0, 4 | (i << 4) | (4 << 8) | ((i + 1) << 12));
}
template <int i>
__device__ __forceinline__ u32 spread(u32 x, u32 y) {
  return __byte_perm(x, y, i * 0x0011 + (4 + i) * 0x1100);
}

struct E5M2Cache {
  static constexpr int kStored = 1, kBytes = 1;
  static constexpr float kFactor = 1.0f;
  template <int i>
  static __device__ __forceinline__ u32 pair(u32 w) {
    return spread<i>(w);
  }
  template <int i>
  static __device__ __forceinline__ u32 cross(u32 x, u32 y) {
    return spread<i>(x, y) & 0xff00ff00u;
  }
};

struct E4M3Cache {
  static constexpr int kStored = 1, kBytes = 1;
#if __CUDA_ARCH__ >= 890
  static constexpr float kFactor = 1.0f;
  template <int i>
  static __device__ __forceinline__ u32 pair(u32 w) {
    return expand_e4m3(w >> (8 * i));
  }
  template <int i>
  static __device__ __forceinline__ u32 cross(u32 x, u32 y) {
    return expand_e4m3(__byte_perm(x, y, i | ((4 + i) << 4)));
  }
#else
  static constexpr float kFactor = 256.0f;
  static __device__ __forceinline__ u32 shifted(u32 w) { return ((w >> 1) & 0x3f803f80u) | (w & 0x80008000u); }
  template <int i>
  static __device__ __forceinline__ u32 pair(u32 w) {
    return shifted(spread<i>(w));
  }
  template <int i>
  static __device__ __forceinline__ u32 cross(u32 x, u32 y) {
    return shifted(spread<i>(x, y));
  }
#endif
};

// 16 float8 as two chunks of float16.
template <class Cache>
__device__ __forceinline__ void expand_chunk(const uint4& x, uint4& low, uint4& high) {
  low = make_uint4(Cache::template pair<0>(x.x), Cache::template pair<2>(x.x), Cache::template pair<0>(x.y),
                   Cache::template pair<2>(x.y));
  high = make_uint4(Cache::template pair<0>(x.z), Cache::template pair<2>(x.z), Cache::template pair<0>(x.w),
                    Cache::template pair<2>(x.w));
}

}  // namespace onecat::paged_attention
