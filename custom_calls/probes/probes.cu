// A clock and a copy, for benches.

using u64 = unsigned long long;

extern "C" __global__ void stamp(u64* out) {
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  *out = now;
}

extern "C" __global__ void __launch_bounds__(512) copy(const uint4* from, uint4* to, u64 count) {
  constexpr int kAtOnce = 4;
  const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
  u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + (kAtOnce - 1) * stride < count; i += kAtOnce * stride) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) v[j] = from[i + j * stride];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) to[i + j * stride] = v[j];
  }
  for (; i < count; i += stride) to[i] = from[i];
}
