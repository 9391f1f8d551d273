// Handlers announce themselves: an operator's .cc file holds static Registration objects, so that adding or deleting an
// operator's folder touches nothing else.
#pragma once
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace onecat {

using Handler = XLA_FFI_Error*(XLA_FFI_CallFrame*);

struct Registration {
  // `name` carries the ABI number of the call ("onecat_nvfp4_linear_v1"): compiled programs are cached on disk under it,
  // and the cache doesn't see the handler's code. `initialize` may be null.
  Registration(const char* name, const char* platform, Handler* execute, Handler* initialize = nullptr);

  std::string name;
  std::string platform;  // "cpu" or "CUDA"
  Handler* execute;
  Handler* initialize;
};

const std::vector<Registration>& registrations();

}  // namespace onecat
