#include "linear/gpu_launch.h"

#include <algorithm>
#include <vector>

#include "ffi/message.h"

namespace onecat::linear {
namespace {

// Names of the kernels of a body, without suffix.
std::string stream_kernel(int rows, int cluster) {
  return "linear_x" + std::to_string(rows) + "_s" + std::to_string(cluster);
}

std::string name_of(const DirectKernel& kernel) {
  return "direct_x" + std::to_string(kernel.rows) + "_s" + std::to_string(kernel.cluster) + "_q" + std::to_string(kernel.parts);
}

// The kernels of m16n8k16_direct.cuh: at most kMostRows rows.
ffi::Error launch_direct(CUstream stream, const Body& body, const Device& device, LinearArgs args) {
  const DirectKernel kernel = direct_kernel(args);
  const std::string name = name_of(kernel);
  const unsigned blocks = static_cast<unsigned>(kernel.cluster);
  Launch launch{body.module.c_str(), name.c_str(), blocks, 1, 1, kDirectWarps * 32, 0};
  int clusters = device.multiprocessors;
  if (kernel.cluster > 1) {
    launch.shared_bytes = direct_tactic(device, kernel, 1, &args);
    if (ffi::Error error = active_clusters(stream, launch, &clusters); error.failure()) return error;
    if (clusters < 1) return invalid(body.kind->name, " linear: no cluster of ", blocks, " blocks can run on this GPU now");
  }
  clusters = std::min(clusters, args.blocks);
  launch.shared_bytes = direct_tactic(device, kernel, clusters, &args);
  launch.grid_x = static_cast<unsigned>(clusters) * blocks;
  void* pointers[] = {&args};
  return launch_kernel(stream, launch, pointers);
}

// The kernels of m16n8k16.cuh: at most kMostRows rows.
ffi::Error launch_ring(CUstream stream, const Body& body, const char* suffix, const StepBytes& bytes, const Device& device,
                       int image, LinearArgs args) {
  StreamTactic tactic;
  if (!stream_tactic(device, image, bytes, &args, &tactic))
    return invalid(body.kind->name, " linear: ", args.m, " rows don't fit into the ", device.shared_bytes,
                   " bytes of shared memory that a block can have on this GPU");
  const std::string kernel = stream_kernel(tactic.rows, tactic.cluster) + suffix;
  void* pointers[] = {&args};
  return launch_kernel(stream, {body.module.c_str(), kernel.c_str(), tactic.blocks, 1, 1, (kStreams + 2) * 32, tactic.shared_bytes},
                       pointers);
}

// The bodies for m16n8k16, kMostRows rows at a time.
ffi::Error launch_streams(CUstream stream, const Body& body, const char* suffix, const StepBytes& bytes, const LinearArgs& whole) {
  const Device device = device_of(stream);
  int image;
  if (ffi::Error error = image_of(stream, body.module.c_str(), &image); error.failure()) return error;
  const bool direct = takes_direct(device, image, bytes, whole);
  const size_t row_in = static_cast<size_t>(whole.k) * 2, row_out = static_cast<size_t>(whole.n) * (whole.out_is_f16 ? 2 : 4);
  for (int first = 0; first < whole.m; first += kMostRows) {
    LinearArgs args = whole;
    args.m = std::min(kMostRows, whole.m - first);
    args.x = static_cast<const char*>(whole.x) + first * row_in;
    args.out = static_cast<char*>(whole.out) + first * row_out;
    const ffi::Error error = direct ? launch_direct(stream, body, device, args) : launch_ring(stream, body, suffix, bytes, device, image, args);
    if (error.failure()) return error;
  }
  return ffi::Error::Success();
}

}  // namespace

ffi::Error body_of(const Kind& kind, std::string_view layout, Body* body) {
  if (layout != "m8n8k4" && layout != "m16n8k16")
    return invalid(kind.name, " linear: layout is '", layout, "', must be m8n8k4 or m16n8k16");
  *body = {&kind, layout == "m16n8k16", std::string(kind.name) + "_" + std::string(layout)};
  return ffi::Error::Success();
}

void describe_layer(const LayerIndex& index, int32_t mul, int32_t add, LinearArgs* args) {
  args->index = index.typed_data();
  args->mul = mul;
  args->add = add;
}

ffi::Error describe_codes(const Body& body, const U8& codes, const LayerIndex& index, int32_t mul, int32_t add, int64_t n,
                          int64_t k, LinearArgs* args) {
  const auto c = codes.dimensions();
  if (k % 32) return invalid(body.kind->name, " linear: K is ", k, ", must be a multiple of 32");
  const int64_t blocks = (n + 31) / 32 * 32 / body.block_rows(), units = (k + body.unit_k() - 1) / body.unit_k();
  const int64_t pieces = body.m16n8k16 ? kStepK / body.kind->m8n8k4_unit_k : 2;
  if (c.size() != 6 || !has_shape(c, {c[0], blocks, units, pieces, 32, 16}))
    return invalid(body.kind->name, " linear: codes are ", shape_text(c), ", a weight [", n, ", ", k, "] needs [L, ", blocks, ", ",
                   units, ", ", pieces, ", 32, 16]");
  describe_layer(index, mul, add, args);
  args->codes = codes.typed_data();
  args->layers = static_cast<int>(c[0]);
  args->blocks = static_cast<int>(blocks);
  args->units = static_cast<int>(units);
  args->n = static_cast<int>(n);
  args->k = static_cast<int>(k);
  return ffi::Error::Success();
}

ffi::Error check_rows(const Kind& kind, const F16& x, const ffi::AnyBuffer& y) {
  const auto xd = x.dimensions(), yd = y.dimensions();
  if (xd.size() != 2 || yd.size() != 2 || xd[0] != yd[0])
    return invalid(kind.name, " linear: x is ", shape_text(xd), " and y is ", shape_text(yd), ", must be [M, K] and [M, N]");
  if (xd[0] < 1 || xd[0] > kMaxRows) return invalid(kind.name, " linear: M is ", xd[0], ", must be 1 .. ", kMaxRows);
  const ffi::DataType out = y.element_type();
  if (out != ffi::DataType::F16 && out != ffi::DataType::F32)
    return invalid(kind.name, " linear: y has element type ", static_cast<int>(out), ", must be float16 or float32");
  return ffi::Error::Success();
}

ffi::Error check_slab(const Kind& kind, const F16& slab) {
  if (slab.dimensions().size() == 2) return ffi::Error::Success();
  return invalid(kind.name, " expand: the result is ", shape_text(slab.dimensions()), ", must be [N, K]");
}

ffi::Error launch_linear(CUstream stream, const Body& body, const char* suffix, const StepBytes& bytes, const F16& x,
                         ffi::AnyBuffer& y, LinearArgs& args) {
  args.x = x.untyped_data();
  args.out = y.untyped_data();
  args.m = static_cast<int>(x.dimensions()[0]);
  args.out_is_f16 = y.element_type() == ffi::DataType::F16;
  if (body.m16n8k16) return launch_streams(stream, body, suffix, bytes, args);
  void* pointers[] = {&args};
  const BlockTactic& tactic = block_tactic(args.m, args.blocks);
  const std::string kernel = std::string(tactic.kernel) + suffix;
  const unsigned blocks = static_cast<unsigned>(args.blocks), threads = static_cast<unsigned>(tactic.warps * 32);
  const unsigned tiles = static_cast<unsigned>((args.m + tactic.rows - 1) / tactic.rows);
  return launch_kernel(stream, {body.module.c_str(), kernel.c_str(), blocks, tiles, 1, threads, 0}, pointers);
}

ffi::Error launch_expand(CUstream stream, const Body& body, const char* suffix, const StepBytes& bytes, F16& slab,
                         LinearArgs& args) {
  args.out = slab.untyped_data();
  const std::string kernel = std::string("expand") + suffix;
  void* pointers[] = {&args};
  const unsigned groups = static_cast<unsigned>((args.units + kExpandWarps - 1) / kExpandWarps);
  const unsigned blocks = static_cast<unsigned>(args.blocks);
  unsigned shared = 0;
  if (body.m16n8k16) {
    args.group = kExpandWarps;
    args.ring = 1;
    args.group_bytes = group_bytes(bytes, kExpandWarps, &args.group_scales);
    shared = static_cast<unsigned>(args.group_bytes);
  }
  return launch_kernel(stream, {body.module.c_str(), kernel.c_str(), blocks, groups, 1, kExpandWarps * 32, shared}, pointers);
}

ffi::Error load_kernels(CUstream stream, const Kind& kind, std::string_view layout,
                        std::initializer_list<const char*> suffixes, bool expands, bool direct) {
  Body body;
  int image;
  if (ffi::Error error = body_of(kind, layout, &body); error.failure()) return error;
  if (ffi::Error error = image_of(stream, body.module.c_str(), &image); error.failure()) return error;
  std::vector<std::string> kernels;
  if (expands) kernels.push_back("expand");
  if (body.m16n8k16) {
    for (int cluster : {1, 2})
      for (int rows : {8, kMostRows})
        if (cluster == 1 || image >= 90) kernels.push_back(stream_kernel(rows, cluster));
  } else {
    for (const BlockTactic& tactic : kBlockTactics) kernels.push_back(tactic.kernel);
  }
  for (const char* suffix : suffixes)
    for (const std::string& kernel : kernels)
      if (ffi::Error error = load_kernel(stream, body.module.c_str(), (kernel + suffix).c_str()); error.failure()) return error;
  if (!direct || !body.m16n8k16 || image < 90) return ffi::Error::Success();
  for (const DirectKernel& kernel : kDirectKernels)
    if (ffi::Error error = load_kernel(stream, body.module.c_str(), name_of(kernel).c_str()); error.failure()) return error;
  return ffi::Error::Success();
}

}  // namespace onecat::linear
