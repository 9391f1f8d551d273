// The scan where shared memory is short: keys and queries share one tile, T and P another, and nothing is copied ahead.
#pragma once
#include "gdn/chunk_scan.cuh"

namespace onecat::gdn {

// One tile for keys and queries, one for T and P: 94208 bytes of shared memory with two terms and 32 values.
template <int kTerms, int kSpan>
class ShortScan : Scan<kTerms, kSpan> {
  using Base = Scan<kTerms, kSpan>;
  using Tiles = typename Base::Tiles;

 public:
  __device__ __forceinline__ ShortScan(const ChunkArgs& a, __half* memory)
      : Base(a), wide_(memory), square_(wide_ + Tiles::kWide), shared_(square_ + Tiles::kSquare),
        rows_(shared_ + Tiles::kState), other_(rows_ + Tiles::kRows) {}

  __device__ __forceinline__ void run() {
    this->clear_outputs();
    const int chunks = this->request_.chunks();
    if (chunks == 0) return;
    this->load_state();
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) one(chunk);
    this->store_state();
    this->move_window();
  }

 private:
  __half *const wide_, *const square_, *const shared_, *const rows_, *const other_;

  __device__ __forceinline__ static void wide(__half* to, const __half* from) {
    copy_tile<kTerms, kChunk, kGpuDim>(to, kWidePitch, from, [](__half* t, const __half* f) {
      *reinterpret_cast<uint4*>(t) = *reinterpret_cast<const uint4*>(f);
    });
  }
  __device__ __forceinline__ static void square(__half* to, const __half* from) {
    copy_tile<kTerms, kChunk, kChunk>(to, kSquarePitch, from, [](__half* t, const __half* f) {
      *reinterpret_cast<uint4*>(t) = *reinterpret_cast<const uint4*>(f);
    });
  }
  __device__ __forceinline__ void one(int chunk) {
    constexpr int kTiles = Base::kTiles, kSecond = Base::kRowsSecond, kPitch = Tiles::kPitch;
    const Operand k{wide_, kWidePitch, kChunk * kWidePitch}, t{square_, kSquarePitch, kChunk * kSquarePitch};
    const Operand s{shared_ + this->column_, kPitch, Base::kStateSecond}, decayed{rows_, kPitch, kSecond};
    const Operand missing = decayed.moved(this->column_), written{other_ + this->column_, kPitch, kSecond};
    float x[kTiles][8] = {}, o[kTiles][8] = {};
    __syncthreads();  // keys, P and the state of the last chunk have been read
    this->share_state(shared_);
    wide(wide_, this->keys(chunk)), square(square_, this->solved(chunk));
    this->load_values(chunk), this->load_decays(chunk);
    __syncthreads();
    product<kTerms, 8, kTiles, kStraight, kStraight>(x, k.moved(this->row_ * kWidePitch), s);
    this->put_missing(rows_, x);
    __syncthreads();  // K has been read, R is there
    wide(wide_, this->queries(chunk));
    product<kTerms, 4, kTiles, kStraight, kStraight>(x, t.moved(this->row_ * kSquarePitch), missing);
    __syncthreads();  // T and R have been read, Q is there
    square(square_, this->mixed(chunk));
    this->put_written(other_, rows_, x, this->to_end_);
    product<kTerms, 8, kTiles, kStraight, kStraight>(o, k.moved(this->row_ * kWidePitch), s);
    this->decay_outputs(o);
    __syncthreads();  // Q and S have been read, U and P are there
    wide(wide_, this->keys(chunk));
    product<kTerms, 4, kTiles, kStraight, kStraight>(o, t.moved(this->row_ * kSquarePitch), written);
    this->put_outputs(chunk, o);
    __syncthreads();  // K is there
    this->decay_state(this->all_);
    product<kTerms, 4, Base::kStateTiles, kTransposed, kStraight>(this->state_, k.moved(this->key_), decayed);
  }
};

}  // namespace onecat::gdn
