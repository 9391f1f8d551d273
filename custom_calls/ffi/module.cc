// The Python face of the extension: handler capsules and what the build and the driver say about themselves.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "ffi/cpu_features.h"
#include "ffi/cuda_driver.h"
#include "ffi/cuda_images.h"
#include "ffi/cuda_launch.h"
#include "ffi/registry.h"

namespace nb = nanobind;

namespace {

nb::capsule capsule(onecat::Handler* handler) { return nb::capsule(reinterpret_cast<void*>(handler)); }

nb::list registrations() {
  nb::list rows;
  for (const onecat::Registration& row : onecat::registrations()) {
    nb::dict stages;
    stages["execute"] = capsule(row.execute);
    if (row.initialize) stages["initialize"] = capsule(row.initialize);
    rows.append(nb::make_tuple(row.name, row.platform, stages));
  }
  return rows;
}

nb::list images() {
  nb::list rows;
  for (const onecat::CudaImage& image : onecat::cuda_images()) {
    rows.append(nb::make_tuple(image.module, image.architecture, image.size()));
  }
  return rows;
}

nb::bytes image(const std::string& module, const std::string& architecture) {
  for (const onecat::CudaImage& image : onecat::cuda_images())
    if (image.module == module && image.architecture == architecture) return nb::bytes(image.begin, image.size());
  throw nb::key_error((module + "." + architecture).c_str());
}

nb::tuple cuda_driver() {
  const onecat::CudaDriver& driver = onecat::CudaDriver::get();
  int version = 0;
  if (driver.error.empty()) driver.driver_version(&version);
  return nb::make_tuple(version, driver.error);
}

nb::tuple choose_image(const std::string& module, int capability) {
  onecat::ImageChoice choice = onecat::choose_image(module, capability);
  return nb::make_tuple(std::string(choice.image ? choice.image->architecture : ""), choice.reason);
}

}  // namespace

NB_MODULE(_ext, m) {
  m.def("registrations", &registrations);
  m.def("images", &images);
  m.def("image", &image, nb::arg("module"), nb::arg("architecture"));
  m.def("cuda_driver", &cuda_driver);
  m.def("choose_image", &choose_image, nb::arg("module"), nb::arg("capability"));
  m.def("force_ptx", &onecat::force_ptx, nb::arg("value"));
  m.def("loaded_architecture", &onecat::loaded_architecture, nb::arg("module"));
  m.def("cpu_isa", [] { return std::string(onecat::isa_name(onecat::cpu_isa())); });
  m.def("force_cpu_isa", &onecat::force_cpu_isa, nb::arg("name"));
}
