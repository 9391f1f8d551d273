#include "ffi/registry.h"

namespace onecat {
namespace {

std::vector<Registration>& all() {
  static std::vector<Registration> list;
  return list;
}

}  // namespace

Registration::Registration(const char* name, const char* platform, Handler* execute, Handler* initialize)
    : name(name), platform(platform), execute(execute), initialize(initialize) {
  all().push_back(*this);
}

const std::vector<Registration>& registrations() { return all(); }

}  // namespace onecat
