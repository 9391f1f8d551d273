#include "ffi/cpu_features.h"

#include <atomic>
#include <stdexcept>

#if defined(ONECAT_AMX) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace onecat {
namespace {

#if defined(ONECAT_AMX) && defined(__linux__)
// The kernel grants a process the tiles' registers on request.
bool has_amx() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if ((d & kBf16) == 0 || (d & kTile) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool has_amx() { return false; }
#endif

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return has_amx() ? Isa::kAmx : Isa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
#endif
  return Isa::kGeneric;
}

Isa best() {
  static const Isa isa = detect();
  return isa;
}

constexpr int kNotForced = -1;
std::atomic<int> forced{kNotForced};

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAmx: return "amx";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx2: return "avx2";
    case Isa::kGeneric: break;
  }
  return "generic";
}

Isa cpu_isa() {
  int value = forced.load(std::memory_order_relaxed);
  return value == kNotForced ? best() : static_cast<Isa>(value);
}

void force_cpu_isa(const std::string& name) {
  if (name.empty()) {
    forced = kNotForced;
    return;
  }
  for (Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (name != isa_name(isa)) continue;
    if (isa > best()) throw std::invalid_argument("this processor has no " + name + "; its best is " + isa_name(best()));
    forced = static_cast<int>(isa);
    return;
  }
  throw std::invalid_argument("instruction set is '" + name + "', must be generic, avx2, avx512 or amx");
}

}  // namespace onecat
