// FFI handler of attention over few rows on CUDA: shape of the launch, launches. Nothing is allocated, nothing waits.
#include <initializer_list>
#include <string>

#include "ffi/message.h"
#include "paged_attention/gpu_launch.h"

namespace onecat::paged_attention {
namespace {

constexpr const char* kName = "attention rows: ";
constexpr unsigned kSharedSm90 = 200 * 1024;  // bytes of a block that GPUs before compute capability 9.0 don't have

// ---- shape of the launch

std::string check_results(const AttendArgs& a, int64_t dim, const F32& partial, const F32& sums) {
  const auto p = partial.dimensions();
  const int64_t block = block_rows(dim, a.tokens * a.group), rows = (a.tokens * a.group + block - 1) / block * block;
  if (p.size() != 5 || p[2] < 1 || p[2] > kMaxSplits || !has_shape(p, {a.batch, a.kv_heads, p[2], rows, dim}))
    return message("partial results are ", shape_text(p), ", must be [", a.batch, ", ", a.kv_heads, ", 1 .. ", kMaxSplits, ", ",
                   rows, ", ", dim, "]");
  if (!has_shape(sums.dimensions(), {a.batch, a.kv_heads, p[2], rows, 2}))
    return message("sums are ", shape_text(sums.dimensions()), ", must be [", a.batch, ", ", a.kv_heads, ", ", p[2], ", ", rows,
                   ", 2]");
  return "";
}

// How many splits a block takes, so that the waves of blocks are few and full; a start costs about half a split. Bits don't
// depend on it.
int run_of(int pairs, int splits, int resident) {
  int best = 1, least = 1 << 30;
  for (int run = 1; run <= splits; ++run) {
    const int cost = up(pairs * up(splits, run), resident) * (2 * run + 1);
    if (cost <= least) least = cost, best = run;
  }
  return best;
}

// rows_m16n8k16.cuh keeps `ahead` tiles of 64 keys and one more of values.
unsigned shared_m16n8k16(int dim, int rows, int bytes, int ahead) {
  if (bytes == 1) ahead *= 2;
  return (2 * ahead + 1) * 64 * dim * bytes + rows * (2 * 72 * 4 + 72 * 2 + 4);
}

unsigned shared_bytes(std::string_view layout, int dim, int rows, bool float8, const Device& device) {
  if (layout == "m8n8k4") return shared_m8n8k4(dim, rows);
  return shared_m16n8k16(dim, rows, float8 ? 1 : 2, device.shared_bytes < kSharedSm90 ? kAheadSm80 : kAheadSm90);
}

ffi::Error launch(CUstream stream, std::string_view layout, const std::string& cache, int dim, AttendArgs& a) {
  const Device device = device_of(stream);
  const int block = block_rows(dim, a.tokens * a.group), pairs = a.batch * a.kv_heads * (a.rows / block);
  a.run = run_of(pairs, a.splits, (dim == 128 ? 2 : 1) * (device.multiprocessors ? device.multiprocessors : 1));
  const std::string module = "attend_" + std::string(layout), size = "_d" + std::to_string(dim);
  const std::string rows = "attend" + size + "_r" + std::to_string(block) + "_" + cache, combine = "combine" + size;
  const unsigned shared = shared_bytes(layout, dim, block, cache[0] == 'e', device);
  const unsigned blocks = static_cast<unsigned>(pairs * up(a.splits, a.run));
  void* pointers[] = {&a};
  const Launch first{module.c_str(), rows.c_str(), blocks, 1, 1, kAttendThreads, shared};
  if (ffi::Error error = launch_kernel(stream, first, pointers); error.failure()) return error;
  const unsigned results = static_cast<unsigned>(a.batch * a.tokens * a.kv_heads * a.group);
  return launch_kernel(stream, {module.c_str(), combine.c_str(), results, 1, 1, static_cast<unsigned>(dim), 0}, pointers);
}

// ---- handlers

ffi::Error Attend(CUstream stream, F16 q, Any k_pages, Any v_pages, Table table, S32 start, S32 count, Scalar first_page,
                  ffi::Result<F32> out, ffi::Result<F32> partial, ffi::Result<F32> sums, float scale, int64_t window,
                  bool causal, std::string_view layout) {
  AttendArgs a{};
  const Operands operands{q, k_pages, v_pages, table, start, count, first_page};
  if (ffi::Error error = describe(kName, operands, {scale, window, causal}, layout, kMaxTokens, *out, &a); error.failure())
    return error;
  const int64_t dim = q.dimensions()[3];
  if (std::string text = check_results(a, dim, *partial, *sums); !text.empty()) return invalid(kName, text);
  if (a.batch == 0) return ffi::Error::Success();
  a.partial = partial->typed_data(), a.sums = sums->typed_data();
  a.splits = static_cast<int>(partial->dimensions()[2]), a.rows = static_cast<int>(partial->dimensions()[3]);
  return launch(stream, layout, cache_name(k_pages.element_type()), static_cast<int>(dim), a);
}

ffi::Error load_all(CUstream stream, const std::string& module, std::string shape, std::initializer_list<const char*> caches) {
  for (const char* cache : caches) {
    const std::string kernel = shape + cache;
    if (ffi::Error error = load_kernel(stream, module.c_str(), kernel.c_str()); error.failure()) return error;
  }
  return ffi::Error::Success();
}

ffi::Error Initialize(CUstream stream, float, int64_t, bool, std::string_view layout) {
  const std::string module = "attend_" + std::string(layout);
  for (const char* shape : {"attend_d256_r16_", "attend_d256_r48_", "attend_d128_r16_", "attend_d128_r32_"}) {
    ffi::Error error = load_all(stream, module, shape, {"f16", "f32", "e4m3", "e5m2"});
    if (error.failure()) return error;
  }
  return load_all(stream, module, "combine_", {"d256", "d128"});
}

XLA_FFI_DEFINE_HANDLER(kAttend, Attend,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<F16>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Table>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<Scalar>()
                           .Ret<F32>()
                           .Ret<F32>()
                           .Ret<F32>()
                           .Attr<float>("scale")
                           .Attr<int64_t>("window")
                           .Attr<bool>("causal")
                           .Attr<std::string_view>("layout"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<Stream>()
                           .Attr<float>("scale")
                           .Attr<int64_t>("window")
                           .Attr<bool>("causal")
                           .Attr<std::string_view>("layout"));

const Registration kRegisterAttend("onecat_attend_rows_gpu_v1", "CUDA", kAttend, kInitialize);

}  // namespace
}  // namespace onecat::paged_attention
