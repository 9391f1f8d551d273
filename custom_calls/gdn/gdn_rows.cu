// architectures: sm_70 sm_80 sm_90 compute_70
//
// The gated delta rule over few rows. A row has the same bits from all three kernels.
#include "gdn/recur.cuh"

#define ONECAT_GDN(NAME, MODE)                                                      \
  extern "C" __global__ void __launch_bounds__(onecat::gdn::kGpuThreads, 2)         \
      NAME(const __grid_constant__ onecat::gdn::RowsArgs a) {                       \
    onecat::gdn::recur_rows<onecat::gdn::MODE>(a);                                  \
  }

ONECAT_GDN(gdn_step, kStep)
ONECAT_GDN(gdn_verify, kVerify)
ONECAT_GDN(gdn_commit, kReplay)
