// Splitting work over XLA's CPU thread pool.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace onecat {

// Threads that can really run at once. XLA's pool is larger than that when it has been told to show several CPU devices.
inline int64_t cores() {
  static const int64_t count = std::max(1u, std::thread::hardware_concurrency());
  return count;
}

// Hands out consecutive pieces of [0, count), each at most `grain` long, to the threads that share them.
class Pieces {
 public:
  struct Shared {
    Shared(int64_t count, int64_t grain) : count(count), grain(grain), pieces((count + grain - 1) / grain) {}

    const int64_t count, grain, pieces;
    std::atomic<int64_t> taken{0};
    std::atomic<int64_t> done{0};
  };

  explicit Pieces(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  // Whether there is another piece; the one that was handed out last is done then.
  bool next() {
    if (piece_ >= 0) shared_->done.fetch_add(1, std::memory_order_release);
    piece_ = shared_->taken.fetch_add(1);
    if (piece_ < shared_->pieces) return true;
    piece_ = -1;
    return false;
  }
  int64_t first() const { return piece_ * shared_->grain; }
  int64_t last() const { return std::min(shared_->count, (piece_ + 1) * shared_->grain); }

 private:
  std::shared_ptr<Shared> shared_;
  int64_t piece_ = -1;
};

// Calls worker(pieces) on every thread that gets a piece of [0, count) and returns when all are done. A worker begins with the
// piece that it finds there and asks for others with next(). The caller works too and waits only for pieces that another thread
// has begun, never for a thread to become free, so a handler that itself runs on the pool can't deadlock. Which thread runs a
// piece must not matter.
template <class Worker>
void parallel_workers(xla::ffi::ThreadPool& pool, int64_t count, int64_t grain, const Worker& worker) {
  auto shared = std::make_shared<Pieces::Shared>(count, grain);
  // A helper that starts after the last piece was taken touches only `shared`.
  auto work = [shared, &worker] {
    if (Pieces pieces(shared); pieces.next()) worker(pieces);
  };
  const int64_t helpers = std::min({static_cast<int64_t>(pool.num_threads()), cores(), shared->pieces}) - 1;
  using Helper = decltype(work);
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(Helper(work));
  work();
  constexpr int kSpins = 4096;
  for (int spin = 0; shared->done.load(std::memory_order_acquire) < shared->pieces; ++spin) {
    if (spin > kSpins) std::this_thread::yield();
  }
}

// The same for body(first, last), which needs nothing that lasts from piece to piece.
template <class Body>
void parallel_for(xla::ffi::ThreadPool& pool, int64_t count, int64_t grain, const Body& body) {
  parallel_workers(pool, count, grain, [&body](Pieces& pieces) {
    do body(pieces.first(), pieces.last());
    while (pieces.next());
  });
}

}  // namespace onecat
