// architectures: sm_80 sm_90 compute_80
//
// Prefill on m16n8k16.
#include "paged_attention/prefill_m16n8k16.cuh"

#include "paged_attention/instances.cuh"

ONECAT_PREFILLS()
