// architectures: sm_70 compute_70
//
// Prefill on m8n8k4.
#include "paged_attention/rows_m8n8k4.cuh"

#include "paged_attention/instances.cuh"

ONECAT_PREFILLS()
