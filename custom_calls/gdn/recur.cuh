// New rows of one value head of one request, by one block: single rows and prefill tails (kStep), rows that may be taken back
// (kVerify: caches are only read), and the replay of kept ones (kReplay: no outputs, all layers of a stack in one launch).
#pragma once
#include "gdn/inputs.cuh"

namespace onecat::gdn {

enum Mode { kStep, kVerify, kReplay };

template <Mode kMode>
class Block {
 public:
  static constexpr bool kOut = kMode != kReplay, kKeep = kMode != kVerify;
  static constexpr int kWarps = kGpuThreads / 32;
  static constexpr int kPairs = (kOut ? 3 : 2) * kHeadPairs;

  // The grid: value heads of a key head, key heads, requests of all layers.
  __device__ __forceinline__ Block(const RowsArgs& a, float* memory)
      : a_(a),
        head_(blockIdx.y * gridDim.x + blockIdx.x),
        b_(kMode == kReplay ? blockIdx.z % a.batch : blockIdx.z),
        inputs_(memory, a.tokens, kOut),
        channels_{static_cast<int>(blockIdx.y), head_, a.key_heads} {
    const int slot = load_now(a.slots + b_), count = load_now(a.count + b_), start = load_now(a.start + b_);
    layer_ = kMode == kReplay ? blockIdx.z / a.batch : load_now(a.layer) * a.mul + a.add;
    const int place = kMode == kReplay ? a.first_place + layer_ : 0;
    slot_ = place * a.layer_slots + slot;
    batch_row_ = place * a.batch + b_;
    const bool known = layer_ >= 0 && layer_ < a.layers && slot >= 0 && slot < a.layer_slots;
    tokens_ = known ? min(max(count, 0), a.tokens) : 0;
    const int half = a.channels / 2;
    window_ = static_cast<u32*>(a.windows) + static_cast<size_t>(slot_) * kHistory * half;
    const u32* rows = static_cast<const u32*>(a.rows) + static_cast<size_t>(batch_row_) * a.tokens * (a.width / 2);
    stream_ = {window_, rows, half, a.width / 2, tokens_, start == 0};
  }

  __device__ __forceinline__ void run() {
    if (kOut) clear_padding();
    if (tokens_ == 0) return;
    __shared__ u32 next[kHistory][3 * kHeadPairs];  // the window behind these rows
    __shared__ bool last;
    const float* conv = a_.conv + static_cast<size_t>(layer_) * kGpuTaps * a_.channels;
    const bool convolves = threadIdx.x < kPairs;
    const int pair = channels_.pair(threadIdx.x);
    Item item;  // ahead of the state, as are the gates: they are needed first
    if (convolves) item.load(stream_, pair, 0), item.load_taps(conv, a_.channels, pair);
    const RawGates raw = raw_gates();
    u32 window[kHistory] = {};
    if (kKeep && moves()) read_window(window);
    float* place = a_.states + (static_cast<size_t>(slot_) * a_.value_heads + head_) * kGpuDim * kGpuDim;
    State state;
    stream_.fresh ? state.clear() : state.load(place);
    put_gates(raw);
    if (kKeep && moves()) put_window(window, next);
    if (convolves) {
      convolve(item, 0);
      if (tokens_ > kItemRows) item.load(stream_, pair, kItemRows), convolve(item, kItemRows);
    }
    const uint2 gate = kOut && a_.norm ? read_gate(threadIdx.x >> 5) : uint2{};
    __syncthreads();
    const unsigned arrived = kKeep && threadIdx.x == 0 ? arrive() : 0;
    for (int row = threadIdx.x >> 5; row < tokens_; row += kWarps) inputs_.template normalise<kOut>(row, threadIdx.x & 31);
    __syncthreads();
    recur(state);
    if (kKeep) state.store(place);
    if (kKeep && threadIdx.x == 0) last = arrived == gridDim.x - 1;
    __syncthreads();
    if (kKeep && moves()) write_window(next, last);
    if (kOut && a_.norm) gated_norm(gate);
  }

 private:
  const RowsArgs& a_;
  const int head_, b_;
  const Inputs inputs_;
  const Channels channels_;
  int layer_, slot_, batch_row_, tokens_;
  u32* window_;
  Stream stream_;

  // Four rows at a time hide one another's latency; one alone costs less.
  __device__ __forceinline__ void convolve(const Item& item, int first) const {
    const int rows = tokens_ - first;
    if (rows == 1) inputs_.put(threadIdx.x, first, item.row(0));
    else convolve_four<0>(item, first);
    if (rows > 4) convolve_four<4>(item, first);
    if (kMode == kVerify && a_.kept_rows) keep(item, first);
  }
  template <int kFirst>
  __device__ __forceinline__ void convolve_four(const Item& item, int first) const {
    float2 y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j] = item.row(kFirst + j);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (first + kFirst + j < tokens_) inputs_.put(threadIdx.x, first + kFirst + j, y[j]);
  }

  // ---- gates, by the last warp, which the convolution of few rows leaves idle

  __device__ __forceinline__ int gate_row() const { return static_cast<int>(threadIdx.x) - (kGpuThreads - 32); }
  __device__ __forceinline__ RawGates raw_gates() const {
    const int row = gate_row();
    if (row < 0 || row >= tokens_) return {};
    const float* from = a_.gates + (static_cast<size_t>(batch_row_) * a_.tokens + row) * 2 * a_.value_heads + head_;
    const int at = layer_ * a_.value_heads + head_;
    return {from[0], from[a_.value_heads], a_.a_log[at], a_.dt_bias[at]};
  }
  __device__ __forceinline__ void put_gates(const RawGates& raw) const {
    const int row = gate_row();
    if (row < 0 || row >= tokens_) return;
    inputs_.gates[row] = raw.computed();
    if (kMode != kVerify || !keeps()) return;
    float* to = a_.kept_gates + kept_row(row) * 2 * a_.value_heads + head_;
    to[0] = raw.b, to[a_.value_heads] = raw.a;
  }

  // ---- rows that are kept for a replay

  __device__ __forceinline__ bool keeps() const {
    return a_.kept_rows && static_cast<u32>(*a_.place) < static_cast<u32>(a_.places);
  }
  __device__ __forceinline__ size_t kept_row(int row) const {
    return (static_cast<size_t>(*a_.place) * a_.batch + b_) * a_.tokens + row;
  }
  // A key head's channels are kept by the first of its value heads.
  __device__ __forceinline__ void keep(const Item& item, int first) const {
    const bool mine = threadIdx.x / kHeadPairs == 1 || blockIdx.x == 0;
    if (!mine || !keeps()) return;
    u32* to = static_cast<u32*>(a_.kept_rows) + kept_row(first) * (a_.channels / 2) + channels_.pair(threadIdx.x);
#pragma unroll
    for (int j = 0; j < kItemRows; ++j)
      if (first + j < tokens_) to[j * (a_.channels / 2)] = item.x[kHistory + j];
  }

  // ---- window

  // Whether this thread moves a pair of channels of the window.
  __device__ __forceinline__ static bool moves() { return threadIdx.x < 3 * kHeadPairs; }
  __device__ __forceinline__ void read_window(u32 (&window)[kHistory]) const {
#pragma unroll
    for (int j = 0; j < kHistory; ++j) window[j] = stream_.at(tokens_ + j, channels_.pair(threadIdx.x));
  }
  __device__ __forceinline__ static void put_window(const u32 (&window)[kHistory], u32 (&next)[kHistory][3 * kHeadPairs]) {
#pragma unroll
    for (int j = 0; j < kHistory; ++j) next[j][threadIdx.x] = window[j];
  }

  // Several blocks read the channels of a key head; the one that has read them last replaces them. A block counts itself when
  // all that it has read lies in shared memory, so no fence is needed. The counter wraps to zero.
  __device__ __forceinline__ unsigned arrive() const {
    return atomicInc(a_.arrivals + blockIdx.z * gridDim.y + blockIdx.y, gridDim.x - 1);
  }
  __device__ __forceinline__ void write_window(const u32 (&next)[kHistory][3 * kHeadPairs], bool last) const {
    if (threadIdx.x / kHeadPairs != 1 && !last) return;
#pragma unroll
    for (int j = 0; j < kHistory; ++j) window_[j * stream_.window_stride + channels_.pair(threadIdx.x)] = next[j][threadIdx.x];
  }

  // ---- recurrence and outputs

  __device__ __forceinline__ void recur(State& state) const {
#pragma unroll 1
    for (int row = 0; row < tokens_; ++row)
      put(state, row, state.template advance<kOut>(inputs_.token(row), kKeep || row + 1 < tokens_));
  }

  __device__ __forceinline__ size_t out_at(int row) const {
    return ((static_cast<size_t>(b_) * a_.tokens + row) * a_.value_heads + head_) * kGpuDim;
  }
  __device__ __forceinline__ void put(const State& state, int row, float o) const {
    if (!kOut || !state.has_output()) return;
    float* to = a_.norm ? inputs_.outputs + row * kGpuDim : static_cast<float*>(a_.out) + out_at(row);
    to[state.column()] = o;
  }

  // Rows that aren't real are zeros.
  __device__ __forceinline__ void clear_padding() const {
#pragma unroll 1
    for (int i = threadIdx.x; i < (a_.tokens - tokens_) * kGpuDim / 2; i += kGpuThreads) {
      const size_t at = out_at(tokens_ + i / (kGpuDim / 2)) / 2 + i % (kGpuDim / 2);
      if (a_.norm) static_cast<u32*>(a_.out)[at] = 0u;
      else static_cast<float2*>(a_.out)[at] = make_float2(0.0f, 0.0f);
    }
  }

  // o * rsqrt(mean(o^2) + eps) * norm * silu(z), a warp per row.
  __device__ __forceinline__ uint2 read_gate(int row) const {
    if (row >= tokens_) return {};
    const u32* z = stream_.rows + static_cast<size_t>(row) * stream_.row_stride + (a_.channels + head_ * kGpuDim) / 2;
    return reinterpret_cast<const uint2*>(z)[threadIdx.x & 31];
  }
  __device__ __forceinline__ void gated_norm(uint2 gate) const {
    const int lane = threadIdx.x & 31;
    const float4 weight = __ldg(reinterpret_cast<const float4*>(a_.norm + layer_ * kGpuDim) + lane);
    for (int row = threadIdx.x >> 5; row < tokens_; row += kWarps) {
      const float4 o = reinterpret_cast<const float4*>(inputs_.outputs + row * kGpuDim)[lane];
      const float2 low = unpack(gate.x), high = unpack(gate.y);
      gate = read_gate(row + kWarps);
      const float4 x = scaled(o, rsqrtf(__fmaf_rn(warp_sum(dot(o, o)), 1.0f / kGpuDim, a_.eps)));
      const u32 a = pack(x.x * weight.x * silu(low.x), x.y * weight.y * silu(low.y));
      const u32 b = pack(x.z * weight.z * silu(high.x), x.w * weight.w * silu(high.y));
      reinterpret_cast<uint2*>(static_cast<__half*>(a_.out) + out_at(row))[lane] = make_uint2(a, b);
    }
  }
};

template <Mode kMode>
__device__ __forceinline__ void recur_rows(const RowsArgs& a) {
  extern __shared__ float4 memory[];
  Block<kMode>(a, reinterpret_cast<float*>(memory)).run();
}

}  // namespace onecat::gdn
