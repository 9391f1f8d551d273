// Error texts: message("K is ", k, ", must be ", want).
#pragma once
#include <sstream>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace onecat {

template <class... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// "[3, 8]"
inline std::string shape_text(xla::ffi::AnyBuffer::Dimensions dims) {
  std::ostringstream out;
  out << "[";
  for (size_t i = 0; i < dims.size(); ++i) out << (i ? ", " : "") << dims[i];
  out << "]";
  return out.str();
}

template <class... Parts>
xla::ffi::Error invalid(const Parts&... parts) {
  return xla::ffi::Error::InvalidArgument(message(parts...));
}

}  // namespace onecat
