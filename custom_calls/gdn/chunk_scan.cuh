// The chunks of one request, one after the other, for one value head and kSpan of its values, by one block. With e = the decay
// from a chunk's start, E = the decay to its end, beta and V [64, kSpan] per row, S [Dk, kSpan]:
//
//   R = beta (V - e K S);  U = T R;  O = (e Q S + P U) Dk^-0.5;  S <- e_last S + K^T (E U)
//
// S stays in the accumulators as float32; products take sums of kTerms float16 numbers.
#pragma once
#include "gdn/chunk_inputs.cuh"

namespace onecat::gdn {

// Float16 elements of shared memory.
template <int kTerms, int kSpan>
struct ScanTiles {
  static constexpr int kPitch = kSpan + 8;
  static constexpr int kWide = kTerms * kChunk * kWidePitch, kSquare = kTerms * kChunk * kSquarePitch;
  static constexpr int kState = kTerms * kGpuDim * kPitch, kRows = kTerms * kChunk * kPitch;
};

template <int kTerms, int kSpan>
class Scan {
 protected:
  using Tiles = ScanTiles<kTerms, kSpan>;
  using Value = typename ValueOf<kTerms>::type;
  static constexpr int kTiles = kSpan / 32;       // of 16 columns: a warp has half of the columns of 16 rows
  static constexpr int kStateTiles = kSpan / 16;  // and all columns of 16 keys
  static constexpr int kStateSecond = kGpuDim * Tiles::kPitch, kRowsSecond = kChunk * Tiles::kPitch;

  const Request request_;
  const ChunkArgs& a_;
  const int head_, first_;  // of the values
  const int row_ = (threadIdx.x >> 6) * 16, column_ = (threadIdx.x >> 5 & 1) * (kSpan / 2);
  const int key_ = (threadIdx.x >> 5) * 16;
  float* const state_place_;
  float state_[kStateTiles][8];
  typename ValueOf<kTerms>::pair value_[kTiles][2][2];  // of this chunk, or the next
  float from_start_[2], to_end_[2], beta_[2], all_;

  __device__ __forceinline__ explicit Scan(const ChunkArgs& a)
      : request_(a, blockIdx.z),
        a_(a),
        head_(blockIdx.y),
        first_(blockIdx.x * kSpan),
        state_place_(a.states +
                     ((static_cast<size_t>(request_.slot) * a.value_heads + blockIdx.y) * kGpuDim + first_) * kGpuDim) {}

  __device__ __forceinline__ int key_head() const { return head_ / request_.per_key(); }
  __device__ __forceinline__ const __half* keys(int chunk) const {
    return request_.of_chunk<__half>(a_.keys, chunk, a_.key_heads, key_head(), kTerms * kChunk * kGpuDim);
  }
  __device__ __forceinline__ const __half* queries(int chunk) const {
    return request_.of_chunk<__half>(a_.queries, chunk, a_.key_heads, key_head(), kTerms * kChunk * kGpuDim);
  }
  __device__ __forceinline__ const __half* solved(int chunk) const {
    return request_.of_chunk<__half>(a_.solved, chunk, a_.value_heads, head_, kTerms * kChunk * kChunk);
  }
  __device__ __forceinline__ const __half* mixed(int chunk) const {
    return request_.of_chunk<__half>(a_.mixed, chunk, a_.value_heads, head_, kTerms * kChunk * kChunk);
  }

  __device__ __forceinline__ const Value* values(int chunk) const {
    return request_.of_chunk<Value>(a_.values, chunk, a_.value_heads, head_, kChunk * kGpuDim);
  }

  // ---- the state

  template <class F>
  __device__ __forceinline__ void each_of_state(const F& body) {
    each_pair<kStateTiles>([&](int n, int p, int s) {
      body(key_ + lane_row(s), n * 16 + lane_column(p), &state_[n][p * 4 + s * 2]);
    });
  }
  __device__ __forceinline__ void load_state() {
    each_of_state([&](int k, int v, float* s) {
      s[0] = request_.fresh ? 0.0f : state_place_[v * kGpuDim + k];
      s[1] = request_.fresh ? 0.0f : state_place_[(v + 1) * kGpuDim + k];
    });
  }
  __device__ __forceinline__ void store_state() {
    each_of_state([&](int k, int v, const float* s) {
      state_place_[v * kGpuDim + k] = s[0], state_place_[(v + 1) * kGpuDim + k] = s[1];
    });
  }
  __device__ __forceinline__ void share_state(__half* tile) {
    each_of_state([&](int k, int v, const float* s) {
      put_pair<kTerms>(tile + k * Tiles::kPitch + v, kStateSecond, s[0], s[1]);
    });
  }
  __device__ __forceinline__ void decay_state(float by) {
#pragma unroll
    for (int n = 0; n < kStateTiles; ++n)
#pragma unroll
      for (int i = 0; i < 8; ++i) state_[n][i] *= by;
  }

  // ---- a chunk's values and decays, and its outputs

  __device__ __forceinline__ void load_values(int chunk) {
    const Value* from = values(chunk) + first_;
    each_of_rows([&](int i, int j, int n, int p, int s) {
      value_[n][p][s] = *reinterpret_cast<const typename ValueOf<kTerms>::pair*>(from + i * kGpuDim + j);
    });
  }
  __device__ __forceinline__ void load_decays(int chunk) {
    const float* from = request_.of_chunk<float>(a_.decays, chunk, a_.value_heads, head_, 3 * kChunk);
    all_ = from[kChunk - 1];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const int i = row_ + lane_row(s);
      from_start_[s] = from[i], to_end_[s] = from[kChunk + i], beta_[s] = from[2 * kChunk + i];
    }
  }
  template <class F>
  __device__ __forceinline__ void each_of_rows(const F& body) {
    each_pair<kTiles>([&](int n, int p, int s) { body(row_ + lane_row(s), column_ + n * 16 + lane_column(p), n, p, s); });
  }
  __device__ __forceinline__ float* out(int row, int column) const {
    const size_t token = static_cast<size_t>(request_.b) * a_.tokens + row;
    return a_.out + (token * a_.value_heads + head_) * kGpuDim + first_ + column;
  }
  __device__ __forceinline__ void put_outputs(int chunk, const float (&o)[kTiles][8]) {
    each_of_rows([&](int i, int j, int n, int p, int s) {
      const int row = chunk * kChunk + i;
      const float* y = &o[n][p * 4 + s * 2];
      if (row < a_.tokens) *reinterpret_cast<float2*>(out(row, j)) = make_float2(y[0] * kQueryScale, y[1] * kQueryScale);
    });
  }
  // Chunks without a real row.
  __device__ __forceinline__ void clear_outputs() const {
    const int first = request_.chunks() * kChunk;
#pragma unroll 1
    for (int i = threadIdx.x; i < (a_.tokens - first) * (kSpan / 2); i += kChunkThreads)
      *reinterpret_cast<float2*>(out(first + i / (kSpan / 2), i % (kSpan / 2) * 2)) = make_float2(0.0f, 0.0f);
  }

  // R, and U with and without the decay to the chunk's end, into tiles.
  __device__ __forceinline__ void put_missing(__half* tile, float (&x)[kTiles][8]) {
    each_of_rows([&](int i, int j, int n, int p, int r) {
      const float e = from_start_[r], beta = beta_[r];
      const float2 v = widened(value_[n][p][r]);
      float* y = &x[n][p * 4 + r * 2];
      put_pair<kTerms>(tile + i * Tiles::kPitch + j, kRowsSecond, beta * (v.x - e * y[0]), beta * (v.y - e * y[1]));
      y[0] = y[1] = 0.0f;
    });
  }
  __device__ __forceinline__ void put_written(__half* tile, __half* decayed, const float (&x)[kTiles][8],
                                              const float (&to_end)[2]) {
    each_of_rows([&](int i, int j, int n, int p, int r) {
      const float* u = &x[n][p * 4 + r * 2];
      put_pair<kTerms>(tile + i * Tiles::kPitch + j, kRowsSecond, u[0], u[1]);
      put_pair<kTerms>(decayed + i * Tiles::kPitch + j, kRowsSecond, u[0] * to_end[r], u[1] * to_end[r]);
    });
  }
  __device__ __forceinline__ void decay_outputs(float (&o)[kTiles][8]) {
    each_pair<kTiles>([&](int n, int p, int r) {
      o[n][p * 4 + r * 2] *= from_start_[r], o[n][p * 4 + r * 2 + 1] *= from_start_[r];
    });
  }

  // ---- the window: the last three rows, once every reader of the old one has finished (an earlier kernel)

  __device__ __forceinline__ void move_window() const {
    if (blockIdx.x || threadIdx.x >= 3 * kHeadPairs || request_.tokens == 0) return;
    const bool value = threadIdx.x / kHeadPairs == 1;
    if (!value && head_ % request_.per_key()) return;
    const int channel = 2 * Channels{key_head(), head_, a_.key_heads}.pair(threadIdx.x);
    u32 rows[kHistory];
#pragma unroll
    for (int j = 0; j < kHistory; ++j) rows[j] = request_.template row<u32>(request_.tokens - kHistory + j, channel);
    __half* window = static_cast<__half*>(a_.windows) + static_cast<size_t>(request_.slot) * kHistory * a_.channels + channel;
#pragma unroll
    for (int j = 0; j < kHistory; ++j) *reinterpret_cast<u32*>(window + j * a_.channels) = rows[j];
  }
};

// Tiles from memory, [terms][kRows][kColumns], by all threads.
template <int kTerms, int kRows, int kColumns, class Copy>
__device__ __forceinline__ void copy_tile(__half* to, int pitch, const __half* from, const Copy& copy) {
  constexpr int kEach = kColumns / 8, kStep = kChunkThreads / kEach;
  const int row = threadIdx.x / kEach, column = threadIdx.x % kEach * 8;
#pragma unroll
  for (int i = 0; i < kTerms * kRows / kStep; ++i)
    copy(to + (row + i * kStep) * pitch + column, from + (row + i * kStep) * kColumns + column);
}

}  // namespace onecat::gdn
