#include "ffi/cuda_driver.h"

#include <dlfcn.h>

namespace onecat {

template <class F>
void CudaDriver::bind(void* library, F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function && error.empty()) {
    error = std::string("libcuda.so.1 has no ") + name +
            "; a driver of CUDA 12.0 or later (525 or later on Linux) is needed";
  }
}

CudaDriver::CudaDriver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    error = "libcuda.so.1 was not found, so there is no NVIDIA driver; install one or use the CPU backend";
    return;
  }
  bind(library, init, "cuInit");
  bind(library, driver_version, "cuDriverGetVersion");
  bind(library, context_current, "cuCtxGetCurrent");
  bind(library, context_device, "cuCtxGetDevice");
  bind(library, context_push, "cuCtxPushCurrent_v2");
  bind(library, context_pop, "cuCtxPopCurrent_v2");
  bind(library, stream_context, "cuStreamGetCtx");
  bind(library, device_attribute, "cuDeviceGetAttribute");
  bind(library, library_load, "cuLibraryLoadData");
  bind(library, library_kernel, "cuLibraryGetKernel");
  bind(library, kernel_function, "cuKernelGetFunction");
  bind(library, function_attribute, "cuFuncSetAttribute");
  bind(library, launch, "cuLaunchKernel");
  bind(library, active_clusters, "cuOccupancyMaxActiveClusters");
  bind(library, copy_async, "cuMemcpyDtoDAsync_v2");
  bind(library, error_string, "cuGetErrorString");
  if (!error.empty()) return;
  if (CUresult code = init(0)) error = "cuInit failed: " + describe(code);
}

const CudaDriver& CudaDriver::get() {
  static const CudaDriver driver;
  return driver;
}

std::string CudaDriver::describe(CUresult code) const {
  const char* text = nullptr;
  if (error_string) error_string(code, &text);
  return (text ? std::string(text) : std::string("unknown error")) + " (CUDA error " + std::to_string(code) + ")";
}

}  // namespace onecat
