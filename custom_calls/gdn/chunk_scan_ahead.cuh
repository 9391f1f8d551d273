// The scan where shared memory is plenty: every tile is copied in the background, keys a whole chunk ahead.
#pragma once
#include "gdn/chunk_scan.cuh"

namespace onecat::gdn {

__device__ __forceinline__ void copy_async(__half* to, const __half* from) {
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(address), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All groups but the last one are there, for every thread.
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncthreads();
}

// With one term the decayed U has a tile of its own, with two it takes that of R.
template <int kTerms, int kSpan>
class AheadScan : Scan<kTerms, kSpan> {
  using Base = Scan<kTerms, kSpan>;
  using Tiles = typename Base::Tiles;
  static constexpr bool kOwn = kTerms == 1;

 public:
  __device__ __forceinline__ AheadScan(const ChunkArgs& a, __half* memory)
      : Base(a), keys_(memory), queries_(keys_ + 2 * Tiles::kWide), solved_(queries_ + Tiles::kWide),
        mixed_(solved_ + Tiles::kSquare), shared_(mixed_ + Tiles::kSquare), missing_(shared_ + Tiles::kState),
        written_(missing_ + Tiles::kRows), decayed_(kOwn ? written_ + Tiles::kRows : missing_) {}

  __device__ __forceinline__ void run() {
    this->clear_outputs();
    const int chunks = this->request_.chunks();
    if (chunks == 0) return;
    wide(keys_, this->keys(0)), wide(queries_, this->queries(0));
    commit_copies();
    square(solved_, this->solved(0));
    commit_copies();
    this->load_state();
    this->share_state(shared_);
    this->load_values(0), this->load_decays(0);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) one(chunk, chunk + 1 < chunks);
    this->store_state();
    this->move_window();
  }

 private:
  __half *const keys_, *const queries_, *const solved_, *const mixed_, *const shared_, *const missing_, *const written_,
      *const decayed_;

  __device__ __forceinline__ static void wide(__half* to, const __half* from) {
    copy_tile<kTerms, kChunk, kGpuDim>(to, kWidePitch, from, copy_async);
  }
  __device__ __forceinline__ static void square(__half* to, const __half* from) {
    copy_tile<kTerms, kChunk, kChunk>(to, kSquarePitch, from, copy_async);
  }

  __device__ __forceinline__ void one(int chunk, bool more) {
    constexpr int kTiles = Base::kTiles, kSecond = Base::kRowsSecond, kPitch = Tiles::kPitch;
    constexpr int kWideSecond = kChunk * kWidePitch, kSquareSecond = kChunk * kSquarePitch;
    const Operand k{keys_ + (chunk & 1) * Tiles::kWide, kWidePitch, kWideSecond}, q{queries_, kWidePitch, kWideSecond};
    const Operand t{solved_ + this->row_ * kSquarePitch, kSquarePitch, kSquareSecond};
    const Operand mixed{mixed_ + this->row_ * kSquarePitch, kSquarePitch, kSquareSecond};
    float x[kTiles][8] = {}, o[kTiles][8] = {};
    wait_copies();  // S, K and Q are there
    square(mixed_, this->mixed(chunk));
    if (more) wide(keys_ + (~chunk & 1) * Tiles::kWide, this->keys(chunk + 1));
    commit_copies();
    const int row = this->row_ * kWidePitch;
    products<kTerms, 8, kTiles>(x, o, k.moved(row), q.moved(row), {shared_ + this->column_, kPitch, Base::kStateSecond});
    this->put_missing(missing_, x);
    this->decay_outputs(o);
    const float to_end[] = {this->to_end_[0], this->to_end_[1]}, all = this->all_;
    if (more) this->load_values(chunk + 1), this->load_decays(chunk + 1);
    wait_copies();  // R and T are there, Q has been read
    if (more) wide(queries_, this->queries(chunk + 1));
    commit_copies();
    product<kTerms, 4, kTiles, kStraight, kStraight>(x, t, {missing_ + this->column_, kPitch, kSecond});
    if (!kOwn) __syncthreads();  // R has been read
    this->put_written(written_, decayed_, x, to_end);
    wait_copies();  // U and P are there, T has been read
    if (more) square(solved_, this->solved(chunk + 1));
    commit_copies();
    this->decay_state(all);
    const Operand decayed{decayed_, kPitch, kSecond};
    product<kTerms, 4, Base::kStateTiles, kTransposed, kStraight>(this->state_, k.moved(this->key_), decayed);
    this->share_state(shared_);
    product<kTerms, 4, kTiles, kStraight, kStraight>(o, mixed, {written_ + this->column_, kPitch, kSecond});
    this->put_outputs(chunk, o);
  }
};

}  // namespace onecat::gdn
