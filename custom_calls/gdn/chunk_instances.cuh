// The kernels of long inputs: their products take one float16 number for each operand, or the sum of two.
#pragma once

#define ONECAT_GDN_INPUTS(TERMS, BLOCKS)                                                \
  extern "C" __global__ void __launch_bounds__(onecat::gdn::kChunkThreads, BLOCKS)      \
      gdn_chunk_inputs_##TERMS(const __grid_constant__ onecat::gdn::ChunkArgs a) {      \
    extern __shared__ float4 memory[];                                                  \
    onecat::gdn::ChunkInputs<TERMS>(a, reinterpret_cast<unsigned char*>(memory)).run(); \
  }

#define ONECAT_GDN_SCAN(NAME, SCAN, TERMS, SPAN)                                        \
  extern "C" __global__ void __launch_bounds__(onecat::gdn::kChunkThreads, 1)           \
      gdn_chunk_scan_##NAME##_##TERMS(const __grid_constant__ onecat::gdn::ChunkArgs a) { \
    extern __shared__ float4 memory[];                                                  \
    onecat::gdn::SCAN<TERMS, SPAN>(a, reinterpret_cast<__half*>(memory)).run();         \
  }
