#include "ffi/cuda_launch.h"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace onecat {
namespace {

constexpr int kAttributeComputeMajor = 75;
constexpr int kAttributeComputeMinor = 76;
constexpr int kAttributeMultiprocessors = 16;
constexpr int kAttributeSharedBytes = 97;      // of a device
constexpr int kAttributeMaxDynamicShared = 8;  // of a function
constexpr unsigned kDefaultSharedLimit = 48 * 1024;
constexpr int kJitErrorLogBuffer = 5;
constexpr int kJitErrorLogSize = 6;

struct Function {
  CUfunction handle = nullptr;
  unsigned shared_limit = kDefaultSharedLimit;
};

struct Cache {
  std::mutex mutex;
  bool ptx_only = false;
  std::map<const CudaImage*, CUlibrary> libraries;
  std::map<std::tuple<CUcontext, std::string, std::string>, Function> functions;
  std::map<std::string, std::string> architectures;
};

Cache& cache() {
  static Cache instance;
  return instance;
}

std::string dotted(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

// Makes the stream's context current for the scope if the calling thread has none.
class ContextScope {
 public:
  ContextScope(const CudaDriver& driver, CUstream stream) : driver_(driver) {
    driver.context_current(&current);
    if (current) return;
    if (driver.stream_context(stream, &current) == 0) pushed_ = driver.context_push(current) == 0;
  }
  ~ContextScope() {
    CUcontext popped;
    if (pushed_) driver_.context_pop(&popped);
  }
  CUcontext current = nullptr;

 private:
  const CudaDriver& driver_;
  bool pushed_ = false;
};

ImageChoice choose(const std::string& module, int capability, bool ptx_only) {
  const CudaImage* code = nullptr;
  const CudaImage* ptx = nullptr;
  std::string have;
  for (const CudaImage& image : cuda_images()) {
    if (image.module != module) continue;
    have += (have.empty() ? "" : ", ") + std::string(image.architecture);
    if (image.capability > capability) continue;
    const CudaImage*& best = image.ptx ? ptx : code;
    if (!image.ptx && image.capability / 10 != capability / 10) continue;
    if (!best || image.capability > best->capability) best = &image;
  }
  if (code && !ptx_only) return {code, "machine code for compute capability " + dotted(capability)};
  if (ptx) {
    return {ptx, ptx_only ? "PTX was forced"
                          : "no machine code for compute capability " + dotted(capability) + ", so the driver translates PTX"};
  }
  return {nullptr, "module " + module + " has images for " + (have.empty() ? "nothing" : have) +
                       ", none of which runs on compute capability " + dotted(capability)};
}

// The following run under the cache's mutex and return an error text, empty on success.
std::string open_library(const CudaDriver& driver, const CudaImage& image, CUlibrary* library) {
  char log[4096] = "";
  int keys[] = {kJitErrorLogBuffer, kJitErrorLogSize};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  CUresult code = driver.library_load(library, image.begin, keys, values, 2, nullptr, nullptr, 0);
  if (code == 0) return "";
  *library = nullptr;
  return std::string("loading ") + image.module + "." + image.architecture + " failed: " + driver.describe(code) + " " + log;
}

std::string resolve(const CudaDriver& driver, CUcontext context, const char* module, const char* kernel, Function** out) {
  Cache& c = cache();
  Function& function = c.functions[{context, module, kernel}];
  *out = &function;
  if (function.handle) return "";
  CUdevice device;
  int major = 0, minor = 0;
  driver.context_device(&device);
  driver.device_attribute(&major, kAttributeComputeMajor, device);
  driver.device_attribute(&minor, kAttributeComputeMinor, device);
  ImageChoice choice = choose(module, major * 10 + minor, c.ptx_only);
  if (!choice.image) return choice.reason;
  CUlibrary& library = c.libraries[choice.image];
  if (!library) {
    std::string error = open_library(driver, *choice.image, &library);
    if (!error.empty()) return error;
  }
  CUkernel handle;
  CUresult code = driver.library_kernel(&handle, library, kernel);
  if (code == 0) code = driver.kernel_function(&function.handle, handle);
  if (code != 0) {
    function.handle = nullptr;
    return std::string("kernel ") + kernel + " of " + module + "." + choice.image->architecture + ": " + driver.describe(code);
  }
  c.architectures[module] = choice.image->architecture;
  return "";
}

std::string prepare(CUstream stream, const char* module, const char* kernel, unsigned shared_bytes, CUfunction* handle) {
  const CudaDriver& driver = CudaDriver::get();
  if (!driver.error.empty()) return driver.error;
  ContextScope scope(driver, stream);
  if (!scope.current) return std::string("kernel ") + kernel + ": the calling thread has no CUDA context";
  std::lock_guard<std::mutex> guard(cache().mutex);
  Function* function = nullptr;
  std::string error = resolve(driver, scope.current, module, kernel, &function);
  if (!error.empty()) return error;
  if (shared_bytes > function->shared_limit) {
    CUresult code = driver.function_attribute(function->handle, kAttributeMaxDynamicShared, static_cast<int>(shared_bytes));
    if (code) return std::string("kernel ") + kernel + " needs " + std::to_string(shared_bytes) + " bytes of shared memory: " + driver.describe(code);
    function->shared_limit = shared_bytes;
  }
  *handle = function->handle;
  return "";
}

xla::ffi::Error failure(const std::string& text) {
  if (!CudaDriver::get().error.empty()) return xla::ffi::Error(xla::ffi::ErrorCode::kFailedPrecondition, text);
  return xla::ffi::Error::Internal(text);
}

}  // namespace

ImageChoice choose_image(const std::string& module, int capability) {
  std::lock_guard<std::mutex> guard(cache().mutex);
  return choose(module, capability, cache().ptx_only);
}

void force_ptx(bool value) {
  std::lock_guard<std::mutex> guard(cache().mutex);
  cache().ptx_only = value;
  cache().functions.clear();
}

std::string loaded_architecture(const std::string& module) {
  std::lock_guard<std::mutex> guard(cache().mutex);
  auto found = cache().architectures.find(module);
  return found == cache().architectures.end() ? "" : found->second;
}

Device device_of(CUstream stream) {
  const CudaDriver& driver = CudaDriver::get();
  if (!driver.error.empty()) return {};
  ContextScope scope(driver, stream);
  CUdevice device;
  int multiprocessors = 0, shared_bytes = 0;
  if (!scope.current || driver.context_device(&device)) return {};
  driver.device_attribute(&multiprocessors, kAttributeMultiprocessors, device);
  driver.device_attribute(&shared_bytes, kAttributeSharedBytes, device);
  return {multiprocessors, static_cast<unsigned>(shared_bytes)};
}

xla::ffi::Error image_of(CUstream stream, const char* module, int* capability) {
  const CudaDriver& driver = CudaDriver::get();
  if (!driver.error.empty()) return failure(driver.error);
  ContextScope scope(driver, stream);
  if (!scope.current) return failure("the calling thread has no CUDA context");
  CUdevice device;
  int major = 0, minor = 0;
  driver.context_device(&device);
  driver.device_attribute(&major, kAttributeComputeMajor, device);
  driver.device_attribute(&minor, kAttributeComputeMinor, device);
  const ImageChoice choice = choose_image(module, major * 10 + minor);
  if (!choice.image) return failure(choice.reason);
  *capability = choice.image->ptx ? 0 : choice.image->capability;
  return xla::ffi::Error::Success();
}

xla::ffi::Error load_kernel(CUstream stream, const char* module, const char* kernel) {
  CUfunction handle;
  std::string error = prepare(stream, module, kernel, 0, &handle);
  return error.empty() ? xla::ffi::Error::Success() : failure(error);
}

xla::ffi::Error active_clusters(CUstream stream, const Launch& launch, int* clusters) {
  CUfunction handle;
  std::string error = prepare(stream, launch.module, launch.kernel, launch.shared_bytes, &handle);
  if (!error.empty()) return failure(error);
  const CudaDriver& driver = CudaDriver::get();
  ContextScope scope(driver, stream);
  const CUlaunchConfig config{{launch.grid_x, launch.grid_y, launch.grid_z}, {launch.threads, 1, 1}, launch.shared_bytes, stream, nullptr, 0};
  if (CUresult code = driver.active_clusters(clusters, handle, &config))
    return xla::ffi::Error::Internal(std::string("counting the clusters of ") + launch.kernel + " failed: " + driver.describe(code));
  return xla::ffi::Error::Success();
}

xla::ffi::Error launch_kernel(CUstream stream, const Launch& launch, void** arguments) {
  CUfunction handle;
  std::string error = prepare(stream, launch.module, launch.kernel, launch.shared_bytes, &handle);
  if (!error.empty()) return failure(error);
  const CudaDriver& driver = CudaDriver::get();
  ContextScope scope(driver, stream);
  CUresult code = driver.launch(handle, launch.grid_x, launch.grid_y, launch.grid_z, launch.threads, 1, 1,
                                launch.shared_bytes, stream, arguments, nullptr);
  if (code == 0) return xla::ffi::Error::Success();
  return xla::ffi::Error::Internal(std::string("launching ") + launch.kernel + " on a grid of " +
                                   std::to_string(launch.grid_x) + " x " + std::to_string(launch.grid_y) + " x " +
                                   std::to_string(launch.grid_z) + " blocks of " + std::to_string(launch.threads) +
                                   " threads failed: " + driver.describe(code));
}

}  // namespace onecat
