// architectures: sm_70 compute_70
//
// The gated delta rule over long inputs on m8n8k4.
#include "gdn/chunk_instances.cuh"
#include "gdn/chunk_scan_short.cuh"

ONECAT_GDN_INPUTS(1, 1)
ONECAT_GDN_INPUTS(2, 1)
ONECAT_GDN_SCAN(short, ShortScan, 1, 32)
ONECAT_GDN_SCAN(short, ShortScan, 2, 32)
