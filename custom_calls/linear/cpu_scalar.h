// Tables and conversions that every instruction set needs.
#pragma once
#include "ffi/float_bits.h"

namespace onecat::linear {
namespace {

alignas(64) constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// Differences of a code and its zero point: 16 values from kSteps + 15 - zero on are those of codes 0 .. 15.
alignas(64) constexpr float kSteps[31] = {-15.0f, -14.0f, -13.0f, -12.0f, -11.0f, -10.0f, -9.0f, -8.0f, -7.0f, -6.0f, -5.0f,
                                          -4.0f,  -3.0f,  -2.0f,  -1.0f,  0.0f,   1.0f,   2.0f,  3.0f,  4.0f,  5.0f,  6.0f,
                                          7.0f,   8.0f,   9.0f,   10.0f,  11.0f,  12.0f,  13.0f, 14.0f, 15.0f};

// An E4M3 code's bits, its magnitude at bit 7, are a float16 of the value times 2^-8, subnormals included.
constexpr float kE4M3Unit = 256.0f;

}  // namespace
}  // namespace onecat::linear
