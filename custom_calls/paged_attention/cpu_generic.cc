// Paged attention for any processor.
#include "ffi/lanes_generic.h"
#include "paged_attention/cpu_body.h"

namespace onecat::paged_attention {

const Kernel kGenericKernel = run<GenericLanes>;

}  // namespace onecat::paged_attention
