// Tables and conversions that every instruction set needs.
#pragma once
#include "ffi/float_bits.h"

namespace onecat::linear {
namespace {

alignas(64) constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace
}  // namespace onecat::linear
