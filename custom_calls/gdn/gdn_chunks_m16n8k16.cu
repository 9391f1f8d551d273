// architectures: sm_80 sm_90 compute_80
//
// The gated delta rule over long inputs on m16n8k16.
#include "gdn/chunk_instances.cuh"
#include "gdn/chunk_scan_ahead.cuh"
#include "gdn/chunk_scan_short.cuh"

ONECAT_GDN_INPUTS(1, 2)
ONECAT_GDN_INPUTS(2, 2)
ONECAT_GDN_SCAN(short, ShortScan, 1, 32)
ONECAT_GDN_SCAN(short, ShortScan, 2, 32)
ONECAT_GDN_SCAN(ahead, AheadScan, 1, 64)
ONECAT_GDN_SCAN(ahead, AheadScan, 2, 64)
