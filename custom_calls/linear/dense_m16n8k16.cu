// architectures: sm_80 sm_90 compute_80
//
// Unquantised float16 weights on m16n8k16, copied row by row as they lie, [n, k]: a lane owns 8 consecutive k of each 32 of a
// step, and its operands are the words that it finds.
#include "linear/m16n8k16.cuh"

namespace onecat::linear {

struct Dense {
  static constexpr float kUnit = 1.0f;
  static constexpr int kSpans = 0, kCopies = kTileRows;

  // Bytes from one row of a group to the next: half of the banks more, so that lanes of two rows meet in none.
  static __device__ __forceinline__ int pitch(const LinearArgs& a) { return a.group * kStepK * 2 + 64; }

  struct Source {
    const LinearArgs& a;
    const __half* rows;

    __device__ __forceinline__ Source(const LinearArgs& args, int layer)
        : a(args), rows(reinterpret_cast<const __half*>(args.codes) + static_cast<size_t>(layer) * args.n * args.k) {}
    __device__ __forceinline__ Piece piece(int i, const Place& at, int count) const {
      const int row = at.tile * kTileRows + i, k = at.step * kStepK;
      if (row >= a.n) return {rows, 0, 0};
      return {rows + static_cast<size_t>(row) * a.k + k, i * pitch(a), min(count * kStepK, a.k - k) * 2};
    }
  };

  uint4 words[2][2];  // [v][row g + 8 r]

  __device__ __forceinline__ Dense(const LinearArgs& a, const Lane& at, const unsigned char* group, int group_first, int i) {
#pragma unroll
    for (int v = 0; v < 2; ++v)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int k = i * kStepK + activation_k(at.t, v);
        const uint4 found = *reinterpret_cast<const uint4*>(group + (at.g + 8 * r) * pitch(a) + k * 2);
        words[v][r] = group_first * kStepK + k < a.k ? found : make_uint4(0, 0, 0, 0);
      }
  }
  static __device__ __forceinline__ int activation_k(int t, int v) { return 32 * v + 8 * t; }
  __device__ __forceinline__ void operand(int i, u32 (&out)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = component(words[i >> 1][j & 1], (i & 1) * 2 + (j >> 1));
  }
  static __device__ __forceinline__ float row_scale(const LinearArgs&, int, int) { return 1.0f; }
};

}  // namespace onecat::linear

ONECAT_LINEARS(, Dense)
