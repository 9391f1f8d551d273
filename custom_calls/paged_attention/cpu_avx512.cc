// Paged attention on AVX-512.
#if defined(__x86_64__)
#include "ffi/lanes_avx512.h"
#include "paged_attention/cpu_body.h"

namespace onecat::paged_attention {

const Kernel kAvx512Kernel = run<Avx512Lanes>;

}  // namespace onecat::paged_attention
#endif
