// architectures: sm_70 sm_80 sm_90 compute_70
//
// New keys and values into their pages, 8 values per thread; and the same with norm and rotary embedding of queries and keys
// before it, one warp per head.
#include "paged_attention/heads.cuh"

extern "C" __global__ void __launch_bounds__(256) kv_write(const __grid_constant__ onecat::paged_attention::WriteArgs a) {
  using namespace onecat::paged_attention;
  const int groups = a.values / kWriteValues;
  const long long id = (long long)blockIdx.x * kWriteThreads + threadIdx.x, token = id / groups;
  if (token >= (long long)a.at.batch * a.at.tokens) return;
  const long long to = place(a.at, static_cast<int>(token / a.at.tokens), static_cast<int>(token % a.at.tokens));
  if (to < 0) return;
  float values[kWriteValues];
  load_as(a.from, blockIdx.y ? a.v : a.k, id, values);
  store_as(a.to, blockIdx.y ? a.at.v_pages : a.at.k_pages, to * groups + id % groups, values);
}

extern "C" __global__ void __launch_bounds__(256)
    write_heads_d256(const __grid_constant__ onecat::paged_attention::HeadArgs a) {
  onecat::paged_attention::write_head<256>(a);
}
extern "C" __global__ void __launch_bounds__(256)
    write_heads_d128(const __grid_constant__ onecat::paged_attention::HeadArgs a) {
  onecat::paged_attention::write_head<128>(a);
}
