// Which instruction set the CPU handlers run on. Every handler gives the same bits on all of them, but for the linears that
// have another contract on the matrix units of AMX (linear/cpu_amx.h).
#pragma once
#include <string>

namespace onecat {

enum class Isa { kGeneric, kAvx2, kAvx512, kAmx };

const char* isa_name(Isa isa);

// The best one this processor has, unless a test forced another.
Isa cpu_isa();

// "generic", "avx2", "avx512", "amx", or "" for the best one. Throws std::invalid_argument for an unknown name or one that
// this processor lacks.
void force_cpu_isa(const std::string& name);

// XLA runs its own code with subnormal numbers flushed to zero on some threads and not on others. For its lifetime this
// puts the calling thread into IEEE mode, so that a handler's bits don't depend on the thread.
class IeeeFloats {
 public:
#if defined(__x86_64__)
  IeeeFloats() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(kRoundToNearest); }
  ~IeeeFloats() { __builtin_ia32_ldmxcsr(saved_); }
#else
  IeeeFloats() {}
  ~IeeeFloats() {}
#endif
  IeeeFloats(const IeeeFloats&) = delete;
  IeeeFloats& operator=(const IeeeFloats&) = delete;

#if defined(__x86_64__)
 private:
  static constexpr unsigned kRoundToNearest = 0x1f80;  // exceptions masked, nothing flushed
  unsigned saved_;
#endif
};

}  // namespace onecat
