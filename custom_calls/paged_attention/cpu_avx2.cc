// Paged attention on AVX2 with FMA.
#if defined(__x86_64__)
#include "ffi/lanes_avx2.h"
#include "paged_attention/cpu_body.h"

namespace onecat::paged_attention {

const Kernel kAvx2Kernel = run<Avx2Lanes>;

}  // namespace onecat::paged_attention
#endif
