// The gated delta rule on AVX-512.
#if defined(__x86_64__)
#include "ffi/lanes_avx512.h"
#include "gdn/cpu_body.h"

namespace onecat::gdn {

const Kernel kAvx512Kernel = run<Avx512Lanes>;

}  // namespace onecat::gdn
#endif
