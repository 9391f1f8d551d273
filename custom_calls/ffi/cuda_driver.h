// The part of the CUDA driver API that launching needs, bound at run time: no CUDA header, no link-time library. A
// machine without a driver loads this extension all the same; only a launch then fails, with a sentence.
#pragma once
#include <cstddef>
#include <string>

struct CUctx_st;
struct CUstream_st;
struct CUlib_st;
struct CUkern_st;
struct CUfunc_st;

namespace onecat {

using CUresult = int;
using CUdevice = int;
using CUcontext = CUctx_st*;
using CUstream = CUstream_st*;
using CUlibrary = CUlib_st*;
using CUkernel = CUkern_st*;
using CUfunction = CUfunc_st*;

// The driver's own: what a launch looks like.
struct CUlaunchConfig {
  unsigned grid[3], threads[3], shared_bytes;
  CUstream stream;
  void* attributes;
  unsigned attribute_count;
};

struct CudaDriver {
  std::string error;  // empty when the driver is usable

  CUresult (*init)(unsigned);
  CUresult (*driver_version)(int*);
  CUresult (*context_current)(CUcontext*);
  CUresult (*context_device)(CUdevice*);
  CUresult (*context_push)(CUcontext);
  CUresult (*context_pop)(CUcontext*);
  CUresult (*stream_context)(CUstream, CUcontext*);
  CUresult (*device_attribute)(int*, int, CUdevice);
  CUresult (*library_load)(CUlibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned);
  CUresult (*library_kernel)(CUkernel*, CUlibrary, const char*);
  CUresult (*kernel_function)(CUfunction*, CUkernel);
  CUresult (*function_attribute)(CUfunction, int, int);
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                     void**, void**);
  CUresult (*active_clusters)(int*, CUfunction, const CUlaunchConfig*);
  CUresult (*copy_async)(unsigned long long, unsigned long long, size_t, CUstream);
  CUresult (*error_string)(CUresult, const char**);

  static const CudaDriver& get();
  std::string describe(CUresult code) const;

 private:
  CudaDriver();
  template <class F>
  void bind(void* library, F& function, const char* name);
};

}  // namespace onecat
