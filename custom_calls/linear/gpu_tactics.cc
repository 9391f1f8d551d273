#include "linear/gpu_tactics.h"

#include <algorithm>

namespace onecat::linear {
namespace {

constexpr int64_t kManyBlocks = 256;       // from here on blocks alone fill a GPU, and long streams of few warps pay
constexpr int kStaticShared = 1024;        // barriers, and what the device keeps
constexpr int kInFlight = 40 << 10;        // bytes that are to be on their way to a multiprocessor
constexpr int kHeldInFlight = 120 << 10;   // the same with activations in registers: more delays the first group
constexpr int kLongUnits = 160;            // K from which on a cluster shares it
constexpr int kFewTiles = 400, kSplittable = 64;
constexpr int kInboxSlots = 8;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

int sums_bytes(int rows) {
  return rows == 8 ? SharedMemory<8>::kSums : SharedMemory<16>::kSums;
}

// Blocks per cluster: the weight alone decides, for it changes the order of summation.
int cluster_of(int image, const LinearArgs& a) {
  if (image < 90) return 1;
  if (a.units > kLongUnits) return 2;
  return a.blocks <= kFewTiles && a.units >= kSplittable ? 2 : 1;
}

struct Memory {
  int room, rounds, row_step;  // bytes; steps of a warp; bytes of activations per step of every warp
};

// Activations of 8 rows in registers, of the next 8 in shared memory. False when two groups don't fit.
bool hold(int rows, const Memory& memory, const StepBytes& bytes, LinearArgs* a) {
  if (memory.rounds > kHeldSteps) return false;
  a->group = kStreams * kHeldGroup;
  a->group_bytes = group_bytes(bytes, a->group, &a->group_scales);
  a->staged = rows == 16 ? memory.rounds : 0;
  const int most = std::max(2, ceil_div(kHeldInFlight, a->group_bytes));
  a->ring = std::min({kMostGroups, most, (memory.room - a->staged * memory.row_step / 2) / a->group_bytes});
  a->held = memory.rounds;
  return a->ring >= 2;
}

// Activations in shared memory, as many as leave `in_flight` bytes to the ring; then the largest groups that keep it so. False
// when nothing fits.
bool stage(const Memory& memory, const StepBytes& bytes, int in_flight, LinearArgs* a) {
  const int step = memory.row_step;
  int best_staged = -1;
  bool best_flight = false;
  a->held = 0;
  for (int rounds = 1; rounds <= memory.rounds; ++rounds) {
    int scales;
    const int group = group_bytes(bytes, kStreams * rounds, &scales);
    const int least = std::max(2, ceil_div(in_flight, group));
    if (least > kMostGroups || least * group > memory.room) continue;
    const int staged = std::min(memory.rounds, (memory.room - least * group) / step);
    const int ring = std::min(kMostGroups, (memory.room - staged * step) / group);
    const bool flight = (ring - 1) * group >= in_flight;
    if (staged < best_staged || (staged == best_staged && flight < best_flight)) continue;
    best_staged = staged;
    best_flight = flight;
    a->staged = staged;
    a->group = kStreams * rounds;
    a->group_bytes = group;
    a->group_scales = scales;
    a->ring = ring;
  }
  return best_staged >= 0;
}

// Parts of K that leave a warp at most kDirectRounds steps of each; 0: K is too long.
int direct_parts(int units) {
  for (int parts = 1; parts <= kDirectParts; parts *= 2)
    if (ceil_div(units, parts) <= kDirectWarps * kDirectRounds) return parts;
  return 0;
}

}  // namespace

bool takes_direct(const Device& device, int image, const StepBytes& bytes, const LinearArgs& a) {
  return image >= 90 && a.blocks <= bytes.direct_tiles * device.multiprocessors && direct_parts(a.units) > 0;
}

DirectKernel direct_kernel(const LinearArgs& a) {
  const int parts = direct_parts(a.units), cluster = a.m <= 8 ? std::max(1, parts / 2) : parts;
  return {a.m <= 8 ? 8 : kMostRows, cluster, parts / cluster};
}

unsigned direct_tactic(const Device& device, const DirectKernel& kernel, int clusters, LinearArgs* a) {
  const bool held = kernel.rows == 8 && kernel.parts == 1;
  const int activations = held ? 0 : ceil_div(a->units, kernel.cluster) * kernel.rows * 128;
  const int tile = kernel.parts * kDirectWarps * kernel.rows * 64;
  a->rounds = ceil_div(ceil_div(a->units, kernel.cluster * kernel.parts), kDirectWarps);
  a->batch = std::min(ceil_div(a->blocks, clusters), (static_cast<int>(device.shared_bytes) - kStaticShared - activations) / tile);
  return static_cast<unsigned>(activations + a->batch * tile);
}

const BlockTactic& block_tactic(int64_t m, int64_t blocks) {
  const int rows = m <= 8 ? 0 : m <= 16 ? 1 : 2;
  return kBlockTactics[(blocks >= kManyBlocks ? 0 : 3) + rows];
}

int group_bytes(const StepBytes& bytes, int steps, int* group_scales) {
  *group_scales = bytes.halves ? (2 * steps + bytes.halves - 2) / bytes.halves + 1 : 0;
  return ceil_div(steps * bytes.step + *group_scales * bytes.scales + bytes.once, 128) * 128;
}

bool stream_tactic(const Device& device, int image, const StepBytes& bytes, LinearArgs* a, StreamTactic* out) {
  StreamTactic& t = *out;
  t.rows = a->m <= 8 ? 8 : kMostRows;
  t.cluster = cluster_of(image, *a);
  const int sums = sums_bytes(t.rows), inbox = t.cluster > 1 ? (t.cluster - 1) * kInboxSlots * t.rows * 64 : 0;
  Memory memory;
  memory.room = static_cast<int>(device.shared_bytes) - kStaticShared - sums - inbox;
  memory.rounds = ceil_div(ceil_div(a->units, t.cluster), kStreams);
  memory.row_step = kStreams * t.rows * 128;
  if (!hold(t.rows, memory, bytes, a) && !stage(memory, bytes, kInFlight, a) && !stage(memory, bytes, 0, a)) return false;
  const int staged = a->staged * memory.row_step / (a->held ? 2 : 1);
  t.shared_bytes = static_cast<unsigned>(sums + staged + a->ring * a->group_bytes);
  t.blocks = static_cast<unsigned>(std::min(a->blocks, device.multiprocessors / t.cluster) * t.cluster);
  return true;
}

}  // namespace onecat::linear
