// The device images that the build embedded into this extension.
#pragma once
#include <cstddef>
#include <vector>

namespace onecat {

struct CudaImage {
  const char* module;        // base name of the .cu file
  const char* architecture;  // "sm_70", "compute_70"
  int capability;            // 70 for 7.0
  bool ptx;
  const unsigned char* begin;
  const unsigned char* end;
  size_t size() const { return static_cast<size_t>(end - begin); }
};

const std::vector<CudaImage>& cuda_images();

}  // namespace onecat
