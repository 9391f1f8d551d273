#include "linear/gpu_launch.h"

#include "ffi/message.h"

namespace onecat::linear {
namespace {

constexpr int kMaxRows = 64;

// The kernel for m activation rows and a weight of `blocks` blocks. How many warps share K decides the order of summation,
// so it depends on the weight alone; the activation rows per block change no order.
struct Tactic {
  const char* kernel;
  int rows, warps;
};

constexpr Tactic kTactics[] = {{"linear_x8_w4", 8, 4},   {"linear_x16_w4", 16, 4}, {"linear_x32_w4", 32, 4},
                               {"linear_x8_w8", 8, 8},   {"linear_x16_w8", 16, 8}, {"linear_x32_w8", 32, 8}};
constexpr int64_t kManyBlocks = 256;  // from here on blocks alone fill a GPU, and long streams of few warps pay

const Tactic& tactic_of(int64_t m, int64_t blocks) {
  const int rows = m <= 8 ? 0 : m <= 16 ? 1 : 2;
  return kTactics[(blocks >= kManyBlocks ? 0 : 3) + rows];
}

}  // namespace

ffi::Error module_of(const Kind& kind, std::string_view layout, std::string* module) {
  if (layout != "m8n8k4" && layout != "m16n8k16")
    return invalid(kind.name, " linear: layout is '", layout, "', must be m8n8k4 or m16n8k16");
  *module = std::string(kind.name) + "_" + std::string(layout);
  return ffi::Error::Success();
}

ffi::Error describe_codes(const Kind& kind, const U8& codes, const LayerIndex& index, int32_t mul, int32_t add, int64_t n,
                          int64_t k, LinearArgs* args) {
  const auto c = codes.dimensions();
  if (k % 32) return invalid(kind.name, " linear: K is ", k, ", must be a multiple of 32");
  const int64_t blocks = (n + kBlockRows - 1) / kBlockRows, units = (k + kind.unit_k - 1) / kind.unit_k;
  if (c.size() != 6 || !has_shape(c, {c[0], blocks, units, 2, 32, 16}))
    return invalid(kind.name, " linear: codes are ", shape_text(c), ", a weight [", n, ", ", k, "] needs [L, ", blocks, ", ",
                   units, ", 2, 32, 16]");
  args->codes = codes.typed_data();
  args->index = index.typed_data();
  args->mul = mul;
  args->add = add;
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

ffi::Error launch_linear(CUstream stream, const std::string& module, const char* suffix, const F16& x, ffi::AnyBuffer& y,
                         LinearArgs& args) {
  args.x = x.untyped_data();
  args.out = y.untyped_data();
  args.m = static_cast<int>(x.dimensions()[0]);
  args.out_is_f16 = y.element_type() == ffi::DataType::F16;
  const Tactic& tactic = tactic_of(args.m, args.blocks);
  const std::string kernel = std::string(tactic.kernel) + suffix;
  void* pointers[] = {&args};
  const unsigned tiles = static_cast<unsigned>((args.m + tactic.rows - 1) / tactic.rows);
  const unsigned blocks = static_cast<unsigned>(args.blocks), threads = static_cast<unsigned>(tactic.warps * 32);
  return launch_kernel(stream, {module.c_str(), kernel.c_str(), blocks, tiles, 1, threads, 0}, pointers);
}

ffi::Error launch_expand(CUstream stream, const std::string& module, const char* suffix, F16& slab, LinearArgs& args) {
  args.out = slab.untyped_data();
  const std::string kernel = std::string("expand") + suffix;
  void* pointers[] = {&args};
  const unsigned groups = static_cast<unsigned>((args.units + kExpandWarps - 1) / kExpandWarps);
  const unsigned blocks = static_cast<unsigned>(args.blocks);
  return launch_kernel(stream, {module.c_str(), kernel.c_str(), blocks, groups, 1, kExpandWarps * 32, 0}, pointers);
}

ffi::Error load_kernels(CUstream stream, const Kind& kind, std::string_view layout,
                        std::initializer_list<const char*> suffixes) {
  std::string module;
  if (ffi::Error error = module_of(kind, layout, &module); error.failure()) return error;
  for (const char* suffix : suffixes) {
    for (const Tactic& tactic : kTactics) {
      const std::string kernel = std::string(tactic.kernel) + suffix;
      if (ffi::Error error = load_kernel(stream, module.c_str(), kernel.c_str()); error.failure()) return error;
    }
    const std::string expand = std::string("expand") + suffix;
    if (ffi::Error error = load_kernel(stream, module.c_str(), expand.c_str()); error.failure()) return error;
  }
  return ffi::Error::Success();
}

}  // namespace onecat::linear
