// The gated delta rule on AVX2 with FMA.
#if defined(__x86_64__)
#include "ffi/lanes_avx2.h"
#include "gdn/cpu_body.h"

namespace onecat::gdn {

const Kernel kAvx2Kernel = run<Avx2Lanes>;

}  // namespace onecat::gdn
#endif
