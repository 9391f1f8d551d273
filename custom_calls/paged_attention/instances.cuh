// The kernels of a family: one per head dim, rows of a block and cache, and the combination for its tile. What a name doesn't
// say doesn't change bits: a row's are the same from all of them.
#pragma once

#define ONECAT_ATTEND(DIM, BANDS, ROWS, NAME, CACHE)                                                                   \
  extern "C" __global__ void __launch_bounds__(256, DIM == 128 && onecat::paged_attention::CACHE::kStored < 4 ? 2 : 1) \
      attend_d##DIM##_r##ROWS##_##NAME(const __grid_constant__ onecat::paged_attention::AttendArgs a) {                \
    onecat::paged_attention::attend_rows<DIM, BANDS, onecat::paged_attention::CACHE>(a);                               \
  }

#define ONECAT_ATTEND_CACHES(DIM, BANDS, ROWS)       \
  ONECAT_ATTEND(DIM, BANDS, ROWS, f16, F16Cache)     \
  ONECAT_ATTEND(DIM, BANDS, ROWS, f32, F32Cache)     \
  ONECAT_ATTEND(DIM, BANDS, ROWS, e4m3, E4M3Cache)   \
  ONECAT_ATTEND(DIM, BANDS, ROWS, e5m2, E5M2Cache)

#define ONECAT_COMBINE(DIM, TILE)                                                                \
  extern "C" __global__ void __launch_bounds__(DIM)                                              \
      combine_d##DIM(const __grid_constant__ onecat::paged_attention::AttendArgs a) {            \
    onecat::paged_attention::combine<DIM, TILE>(a);                                              \
  }

#define ONECAT_ATTENDS(TILE)       \
  ONECAT_ATTEND_CACHES(256, 1, 16) \
  ONECAT_ATTEND_CACHES(256, 3, 48) \
  ONECAT_ATTEND_CACHES(128, 1, 16) \
  ONECAT_ATTEND_CACHES(128, 2, 32) \
  ONECAT_COMBINE(256, TILE)        \
  ONECAT_COMBINE(128, TILE)

#define ONECAT_PREFILL(DIM, NAME, CACHE)                                                         \
  extern "C" __global__ void __launch_bounds__(256, 1)                                           \
      prefill_d##DIM##_##NAME(const __grid_constant__ onecat::paged_attention::AttendArgs a) {   \
    onecat::paged_attention::prefill<DIM, onecat::paged_attention::CACHE>(a);                    \
  }

#define ONECAT_PREFILLS()                  \
  ONECAT_PREFILL(256, f16, F16Cache)       \
  ONECAT_PREFILL(256, e4m3, E4M3Cache)     \
  ONECAT_PREFILL(256, e5m2, E5M2Cache)     \
  ONECAT_PREFILL(128, f16, F16Cache)       \
  ONECAT_PREFILL(128, e4m3, E4M3Cache)     \
  ONECAT_PREFILL(128, e5m2, E5M2Cache)
