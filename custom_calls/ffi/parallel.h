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

// Calls body(first, last) for consecutive pieces of [0, count), at most `grain` long, and returns when all are done. The
// caller works too and waits only for pieces that another thread has begun, never for a thread to become free, so a
// handler that itself runs on the pool can't deadlock. Which thread runs a piece must not matter.
template <class Body>
void parallel_for(xla::ffi::ThreadPool& pool, int64_t count, int64_t grain, const Body& body) {
  const int64_t pieces = (count + grain - 1) / grain;
  const int64_t helpers = std::min({static_cast<int64_t>(pool.num_threads()), cores(), pieces}) - 1;
  if (helpers <= 0) {
    body(0, count);
    return;
  }
  struct Shared {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
  };
  auto shared = std::make_shared<Shared>();
  // A helper that starts after the last piece was taken touches only `shared`.
  auto work = [shared, pieces, count, grain, &body] {
    for (int64_t piece; (piece = shared->next.fetch_add(1)) < pieces;) {
      body(piece * grain, std::min(count, (piece + 1) * grain));
      shared->done.fetch_add(1, std::memory_order_release);
    }
  };
  using Helper = decltype(work);
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(Helper(work));
  work();
  constexpr int kSpins = 4096;
  for (int spin = 0; shared->done.load(std::memory_order_acquire) < pieces; ++spin) {
    if (spin > kSpins) std::this_thread::yield();
  }
}

}  // namespace onecat
