// architectures: sm_80 sm_90 compute_80
//
// Attention of decode, verify and draft rows on m16n8k16.
#include "paged_attention/rows_m16n8k16.cuh"

#include "paged_attention/combine.cuh"
#include "paged_attention/instances.cuh"

ONECAT_ATTENDS(64)
