// The gated delta rule for any processor.
#include "ffi/lanes_generic.h"
#include "gdn/cpu_body.h"

namespace onecat::gdn {

const Kernel kGenericKernel = run<GenericLanes>;

}  // namespace onecat::gdn
