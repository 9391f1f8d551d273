// Which instruction set the CPU handlers run on. Every handler gives the same bits on all of them.
#pragma once
#include <string>

namespace onecat {

enum class Isa { kGeneric, kAvx2, kAvx512 };

const char* isa_name(Isa isa);

// The best one this processor has, unless a test forced another.
Isa cpu_isa();

// "generic", "avx2", "avx512", or "" for the best one. Throws std::invalid_argument for an unknown name or one that
// this processor lacks.
void force_cpu_isa(const std::string& name);

}  // namespace onecat
