// The instructions that the attention kernels need and C++ has no words for.
#pragma once
#include <cuda_fp16.h>

namespace onecat::paged_attention {

using u32 = unsigned int;
using u8 = unsigned char;

__device__ __forceinline__ float lowest() { return __int_as_float(0xff800000); }  // minus infinity

// x, such that what follows from it isn't computed ahead of a loop, where it would occupy registers.
__device__ __forceinline__ int computed_here(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// 2^x; exactly 1 for 0, exactly 0 for minus infinity. Results below the smallest normal number are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ u32 pack(float a, float b) {
  const __half2 h = __floats2half2_rn(a, b);
  return *reinterpret_cast<const u32*>(&h);
}

// Of neighbouring lanes (lane ^ kFlip) the first gets both their `a`, the second both their `b`, in the lanes' order: so that
// stores of 16 bytes fill whole sectors of memory.
template <int kFlip>
__device__ __forceinline__ float4 join_lanes(float2 a, float2 b, bool second) {
  const float x = __shfl_xor_sync(~0u, second ? a.x : b.x, kFlip), y = __shfl_xor_sync(~0u, second ? a.y : b.y, kFlip);
  return second ? make_float4(x, y, b.x, b.y) : make_float4(a.x, a.y, x, y);
}

__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Cache bytes are read once: keep them out of the first-level cache.
__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(p));
  return r;
}

// Eight float32 to float16.
__device__ __forceinline__ uint4 narrow(const uint4& a, const uint4& b) {
  return make_uint4(pack(__uint_as_float(a.x), __uint_as_float(a.y)), pack(__uint_as_float(a.z), __uint_as_float(a.w)),
                    pack(__uint_as_float(b.x), __uint_as_float(b.y)), pack(__uint_as_float(b.z), __uint_as_float(b.w)));
}

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ u32 expand_e4m3(u32 pair) {
  u32 r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(static_cast<unsigned short>(pair)));
  return r;
}
#endif

#if __CUDA_ARCH__ >= 800

// c += A [16, 16] B [16, 8]
__device__ __forceinline__ void multiply_16x8x16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 load_matrices(u32 address) {
  uint4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(address)
               : "memory");
  return r;
}

__device__ __forceinline__ uint4 load_matrices_transposed(u32 address) {
  uint4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(address)
               : "memory");
  return r;
}

// 16 bytes to shared memory in the background.
__device__ __forceinline__ void copy_async(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_or_zero(u32 to, const void* from, bool read) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(read ? 16 : 0) : "memory");
}
__device__ __forceinline__ void store_shared(u32 to, const uint4& x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ uint4 load_shared(u32 from) {
  uint4 r;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(from) : "memory");
  return r;
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#else

// c += A [8, 4] B [4, 8] for each of the warp's four quad pairs; B is held by columns (keys) or by rows (values).
__device__ __forceinline__ void multiply_by_columns(float (&c)[8], u32 a0, u32 a1, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9},{%10,%11},{%0,%1,%2,%3,%4,%5,%6,%7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_by_rows(float (&c)[8], u32 a0, u32 a1, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9},{%10,%11},{%0,%1,%2,%3,%4,%5,%6,%7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}

#endif

}  // namespace onecat::paged_attention
