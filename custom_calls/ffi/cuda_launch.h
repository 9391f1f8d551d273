// Finding and launching embedded kernels.
#pragma once
#include <string>

#include "ffi/cuda_driver.h"
#include "ffi/cuda_images.h"
#include "xla/ffi/api/ffi.h"

namespace onecat {

struct ImageChoice {
  const CudaImage* image;  // null when nothing fits
  std::string reason;      // why this image, or why none
};

// Machine code of the device's own major version with the highest minor that isn't above the device's; else PTX; else
// nothing. `capability` is 10 * major + minor.
ImageChoice choose_image(const std::string& module, int capability);

// Makes choose_image ignore machine code, so that tests can run PTX of an older architecture on a newer GPU. Kernels
// that were already loaded are dropped.
void force_ptx(bool value);

struct Launch {
  const char* module;  // base name of the .cu file
  const char* kernel;
  unsigned grid_x, grid_y, grid_z;
  unsigned threads;
  unsigned shared_bytes;  // dynamic
};

// Resolves a kernel for the stream's context, so that nothing is loaded while a command buffer is being recorded.
xla::ffi::Error load_kernel(CUstream stream, const char* module, const char* kernel);

// How many clusters of the kernel's blocks run at once; the grid must hold at least one.
xla::ffi::Error active_clusters(CUstream stream, const Launch& launch, int* clusters);

// Enqueues the kernel. No allocation, no synchronisation.
xla::ffi::Error launch_kernel(CUstream stream, const Launch& launch, void** arguments);

// What a launch may be shaped by; zeros without a usable driver (launching then says why).
struct Device {
  int multiprocessors;
  unsigned shared_bytes;  // of one block, at most
};
Device device_of(CUstream stream);

// The capability of the module's image for the stream's device, 0 for PTX.
xla::ffi::Error image_of(CUstream stream, const char* module, int* capability);

// Architecture of the image that was loaded last for `module` ("" if none): what tests assert.
std::string loaded_architecture(const std::string& module);

}  // namespace onecat
