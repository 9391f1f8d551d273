// Products of 16 x 16 x 16 by one warp: float16 operands in shared memory, float32 sums, for m16n8k16 and for m8n8k4. Element i
// of a lane's eight sums lies at row lane_row(i / 2 & 1), column lane_column(i / 4) + (i & 1). An operand of two terms has its
// second one `second` elements behind the first; the product of both second terms is left out.
#pragma once
#include "gdn/ptx.cuh"

namespace onecat::gdn {

enum Order { kStraight, kTransposed };  // how an operand is stored: A [m][k] or [k][m], B [k][n] or [n][k]

struct Operand {
  const __half* at;
  int pitch, second;

  __device__ __forceinline__ Operand moved(int elements) const { return {at + elements, pitch, second}; }
};

#if __CUDA_ARCH__ >= 800

struct Fragment {
  u32 x[4];
};

__device__ __forceinline__ int lane_row(int s) { return ((threadIdx.x & 31) >> 2) + 8 * s; }
__device__ __forceinline__ int lane_column(int p) { return (threadIdx.x & 3) * 2 + 8 * p; }

template <bool kTurned>
__device__ __forceinline__ Fragment load_matrices(const __half* p) {
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(p));
  Fragment f;
  if (kTurned)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"(address)
                 : "memory");
  return f;
}
// A lane's address of the four 8 x 8 matrices: the second one lies below the first, or beside it.
template <bool kBeside>
__device__ __forceinline__ const __half* lane_matrix(const __half* p, int pitch) {
  const int row = threadIdx.x & 7, second = threadIdx.x >> 3 & 1, upper = threadIdx.x >> 4 & 1;
  return kBeside ? p + (row + upper * 8) * pitch + second * 8 : p + (row + second * 8) * pitch + upper * 8;
}
template <Order kOrder>
__device__ __forceinline__ Fragment load_a(const __half* p, int pitch) {
  return load_matrices<kOrder == kTransposed>(lane_matrix<kOrder == kTransposed>(p, pitch));
}
template <Order kOrder>
__device__ __forceinline__ Fragment load_b(const __half* p, int pitch) {
  return load_matrices<kOrder == kStraight>(lane_matrix<kOrder == kTransposed>(p, pitch));
}

template <Order kA, Order kB>
__device__ __forceinline__ void multiply(float (&c)[8], const Fragment& a, const Fragment& b) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[n * 4]), "+f"(c[n * 4 + 1]), "+f"(c[n * 4 + 2]), "+f"(c[n * 4 + 3])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[n * 2]), "r"(b.x[n * 2 + 1]));
}

#else

struct Fragment {
  uint2 x[4];  // four of the sixteen products at a time
};

// Each of a warp's four quad pairs has a quarter of the tile.
__device__ __forceinline__ int quad_row() { return (threadIdx.x >> 2 & 1) * 8; }
__device__ __forceinline__ int quad_column() { return (threadIdx.x >> 3 & 1) * 8; }
__device__ __forceinline__ int upper_half() { return threadIdx.x & 16 ? 4 : 0; }
__device__ __forceinline__ int lane_row(int s) { return quad_row() + (threadIdx.x & 1) + upper_half() + 2 * s; }
__device__ __forceinline__ int lane_column(int p) { return quad_column() + (threadIdx.x & 2) + 4 * p; }

// kInner: the sum's index is the inner one of the storage.
template <bool kInner>
__device__ __forceinline__ Fragment load_quads(const __half* p, int pitch, int first) {
  const int lane = threadIdx.x & 3;
  Fragment f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int inner = (first + lane + upper_half()) * pitch + 4 * k, outer = (4 * k + lane) * pitch + first + upper_half();
    f.x[k] = *reinterpret_cast<const uint2*>(p + (kInner ? inner : outer));
  }
  return f;
}
template <Order kOrder>
__device__ __forceinline__ Fragment load_a(const __half* p, int pitch) {
  return load_quads<kOrder == kStraight>(p, pitch, quad_row());
}
template <Order kOrder>
__device__ __forceinline__ Fragment load_b(const __half* p, int pitch) {
  return load_quads<kOrder == kTransposed>(p, pitch, quad_column());
}

#define ONECAT_MULTIPLY(A, B)                                                                                             \
  asm volatile("mma.sync.aligned.m8n8k4." A "." B                                                                         \
               ".f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9},{%10,%11},{%0,%1,%2,%3,%4,%5,%6,%7};"                  \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])           \
               : "r"(a.x[k].x), "r"(a.x[k].y), "r"(b.x[k].x), "r"(b.x[k].y))

template <Order kA, Order kB>
__device__ __forceinline__ void multiply(float (&c)[8], const Fragment& a, const Fragment& b) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (kA == kStraight) {
      if (kB == kStraight) ONECAT_MULTIPLY("row", "row");
      else ONECAT_MULTIPLY("row", "col");
    } else {
      if (kB == kStraight) ONECAT_MULTIPLY("col", "row");
      else ONECAT_MULTIPLY("col", "col");
    }
  }
}
#undef ONECAT_MULTIPLY

#endif

// sums [kTiles] of 16 x 16 += A [16, 16 * kSteps] B [16 * kSteps, 16 * kTiles].
template <int kTerms, int kSteps, int kTiles, Order kA, Order kB, int kUnroll = kSteps>
__device__ __forceinline__ void product(float (&sums)[kTiles][8], const Operand& a, const Operand& b) {
#pragma unroll kUnroll
  for (int k = 0; k < kSteps; ++k) {
    const __half* from = a.at + (kA == kStraight ? k * 16 : k * 16 * a.pitch);
    const Fragment a1 = load_a<kA>(from, a.pitch), a2 = kTerms == 2 ? load_a<kA>(from + a.second, a.pitch) : a1;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const __half* with = b.at + (kB == kStraight ? k * 16 * b.pitch + n * 16 : n * 16 * b.pitch + k * 16);
      const Fragment b1 = load_b<kB>(with, b.pitch);
      if (kTerms == 2) {
        const Fragment b2 = load_b<kB>(with + b.second, b.pitch);
        multiply<kA, kB>(sums[n], a2, b1);
        multiply<kA, kB>(sums[n], a1, b2);
      }
      multiply<kA, kB>(sums[n], a1, b1);
    }
  }
}

// Two products with the same B, whose fragments are loaded once.
template <int kTerms, int kSteps, int kTiles>
__device__ __forceinline__ void products(float (&x)[kTiles][8], float (&y)[kTiles][8], const Operand& a, const Operand& c,
                                         const Operand& b) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const Fragment a1 = load_a<kStraight>(a.at + k * 16, a.pitch), c1 = load_a<kStraight>(c.at + k * 16, c.pitch);
    const Fragment a2 = kTerms == 2 ? load_a<kStraight>(a.at + k * 16 + a.second, a.pitch) : a1;
    const Fragment c2 = kTerms == 2 ? load_a<kStraight>(c.at + k * 16 + c.second, c.pitch) : c1;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const __half* with = b.at + k * 16 * b.pitch + n * 16;
      const Fragment b1 = load_b<kStraight>(with, b.pitch);
      if (kTerms == 2) {
        const Fragment b2 = load_b<kStraight>(with + b.second, b.pitch);
        multiply<kStraight, kStraight>(x[n], a2, b1);
        multiply<kStraight, kStraight>(y[n], c2, b1);
        multiply<kStraight, kStraight>(x[n], a1, b2);
        multiply<kStraight, kStraight>(y[n], c1, b2);
      }
      multiply<kStraight, kStraight>(x[n], a1, b1);
      multiply<kStraight, kStraight>(y[n], c1, b1);
    }
  }
}

// Neighbouring numbers as sums of float16 pairs.
__device__ __forceinline__ void split(float a, float b, u32* first, u32* second) {
  *first = pack(a, b);
  const float2 rounded = unpack(*first);
  *second = pack(__fsub_rn(a, rounded.x), __fsub_rn(b, rounded.y));
}
template <int kTerms>
__device__ __forceinline__ void put_pair(__half* at, int second, float a, float b) {
  u32 x, y;
  split(a, b, &x, &y);
  *reinterpret_cast<u32*>(at) = x;
  if (kTerms == 2) *reinterpret_cast<u32*>(at + second) = y;
}

// body(tile, p, s) for the pairs of neighbouring sums of a row of tiles: elements p * 4 + s * 2 and the next.
template <int kTiles, class F>
__device__ __forceinline__ void each_pair(const F& body) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int s = 0; s < 2; ++s) body(n, p, s);
}

}  // namespace onecat::gdn
