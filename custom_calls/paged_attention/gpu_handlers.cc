// FFI handler of attention over few rows on CUDA: checks, shape of the launch, launches. Nothing is allocated, nothing waits;
// tables, lengths and the layer's first page stay on the device, so a program can be recorded once and replayed.
#include <initializer_list>
#include <string>

#include "ffi/cuda_launch.h"
#include "ffi/operands.h"
#include "ffi/registry.h"
#include "paged_attention/gpu_args.h"

namespace ffi = xla::ffi;

namespace onecat::paged_attention {
namespace {

using Any = ffi::AnyBuffer;
using F16 = ffi::Buffer<ffi::F16>;
using F32 = ffi::Buffer<ffi::F32>;
using Table = ffi::BufferR2<ffi::S32>;
using S32 = ffi::BufferR1<ffi::S32>;
using Scalar = ffi::BufferR0<ffi::S32>;
using Stream = ffi::PlatformStream<CUstream>;

constexpr const char* kName = "attention rows: ";
constexpr int kPageMultiple = 16;

// ---- checks

const char* cache_name(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F16: return "f16";
    case ffi::DataType::F32: return "f32";
    case ffi::DataType::F8E4M3FN: return "e4m3";
    case ffi::DataType::F8E5M2: return "e5m2";
    default: return nullptr;
  }
}

std::string check_caches(const F16& q, const Any& k, const Any& v) {
  const auto x = q.dimensions(), d = k.dimensions();
  if (d.size() != 4 || !(d == v.dimensions()) || d[0] < 1 || d[1] < 1 || d[1] % kPageMultiple)
    return message("caches are ", shape_text(d), " and ", shape_text(v.dimensions()),
                   ", both must be [X, S, J, D] with S a multiple of ", kPageMultiple);
  if (!cache_name(k.element_type()) || v.element_type() != k.element_type())
    return "caches must both be float16, float32, float8_e4m3fn or float8_e5m2";
  if (d[3] != 128 && d[3] != 256) return message("head dim is ", d[3], ", must be 128 or 256");
  if (x.size() != 4 || x[1] < 1 || x[1] > kMaxTokens || x[3] != d[3])
    return message("new rows are ", shape_text(x), ", must be [B, 1 .. ", kMaxTokens, ", heads, ", d[3], "]");
  if (x[2] % d[2] || x[2] / d[2] < 1 || x[2] / d[2] > kMaxQueryHeads)
    return message(x[2], " query heads over ", d[2], " kv heads: must be 1 .. ", kMaxQueryHeads, " for each");
  return "";
}

std::string check_place(const Table& table, const S32& start, const S32& count, int64_t batch) {
  const auto t = table.dimensions();
  if (t[0] != batch || t[1] < 1) return message("the table is ", shape_text(t), ", must be [", batch, ", P]");
  for (const S32* each : {&start, &count}) {
    if (each->dimensions()[0] != batch)
      return message("start and count must be [", batch, "], one is ", shape_text(each->dimensions()));
  }
  return "";
}

// ---- shape of the launch

// Rows of one block: 16 while they hold all of a request's rows, else what the registers hold.
int block_rows(int64_t dim, int64_t rows) { return rows <= 16 ? 16 : dim == 256 ? 48 : 32; }

std::string check_results(const AttendArgs& a, int64_t dim, const F16& q, const F32& out, const F32& partial, const F32& sums) {
  const auto p = partial.dimensions();
  if (!(out.dimensions() == q.dimensions()))
    return message("o is ", shape_text(out.dimensions()), ", must be ", shape_text(q.dimensions()));
  const int64_t block = block_rows(dim, a.tokens * a.group), rows = (a.tokens * a.group + block - 1) / block * block;
  if (p.size() != 5 || p[2] < 1 || p[2] > kMaxSplits || !has_shape(p, {a.batch, a.kv_heads, p[2], rows, dim}))
    return message("partial results are ", shape_text(p), ", must be [", a.batch, ", ", a.kv_heads, ", 1 .. ", kMaxSplits, ", ",
                   rows, ", ", dim, "]");
  if (!has_shape(sums.dimensions(), {a.batch, a.kv_heads, p[2], rows, 2}))
    return message("sums are ", shape_text(sums.dimensions()), ", must be [", a.batch, ", ", a.kv_heads, ", ", p[2], ", ", rows,
                   ", 2]");
  return "";
}

int up(int a, int b) { return (a + b - 1) / b; }

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

// The tiles' layout in shared memory: rows_m16n8k16.cuh keeps `ahead` tiles of 64 keys and one more of values, rows_m8n8k4.cuh
// the queries and one tile of 32 of each.
unsigned shared_m16n8k16(int dim, int rows, int bytes, int ahead) {
  if (bytes == 1) ahead *= 2;
  return (2 * ahead + 1) * 64 * dim * bytes + rows * (2 * 72 * 4 + 72 * 2 + 4);
}
unsigned shared_m8n8k4(int dim, int rows) { return (rows + 2 * 32) * dim * 2 + rows * (4 * 40 * 4 + 40 * 2 + 4); }

unsigned shared_bytes(std::string_view layout, int dim, int rows, bool float8, const Device& device) {
  if (layout == "m8n8k4") return shared_m8n8k4(dim, rows);
  const unsigned large = shared_m16n8k16(dim, rows, float8 ? 1 : 2, kAheadSm90);
  return large <= device.shared_bytes ? large : shared_m16n8k16(dim, rows, float8 ? 1 : 2, kAheadSm80);
}

ffi::Error launch(CUstream stream, std::string_view layout, const char* cache, int dim, AttendArgs& a) {
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
  const unsigned results = static_cast<unsigned>(a.batch * a.tokens * a.kv_heads * a.group), threads = static_cast<unsigned>(dim);
  return launch_kernel(stream, {module.c_str(), combine.c_str(), results, 1, 1, threads, 0}, pointers);
}

// ---- handlers

ffi::Error Attend(CUstream stream, F16 q, Any k_pages, Any v_pages, Table table, S32 start, S32 count, Scalar first_page,
                  ffi::Result<F32> out, ffi::Result<F32> partial, ffi::Result<F32> sums, float scale, int64_t window,
                  bool causal, std::string_view layout) {
  if (layout != "m8n8k4" && layout != "m16n8k16")
    return invalid(kName, "layout is '", layout, "', must be m8n8k4 or m16n8k16");
  if (std::string text = check_caches(q, k_pages, v_pages); !text.empty()) return invalid(kName, text);
  const auto x = q.dimensions(), d = k_pages.dimensions();
  if (std::string text = check_place(table, start, count, x[0]); !text.empty()) return invalid(kName, text);
  if (!(scale > 0.0f) || window < 0 || window > INT32_MAX)
    return invalid(kName, "scale is ", scale, " and window ", window, ", must be above 0 and 0 .. ", INT32_MAX);
  AttendArgs a{};
  a.batch = static_cast<int>(x[0]), a.tokens = static_cast<int>(x[1]);
  a.kv_heads = static_cast<int>(d[2]), a.group = static_cast<int>(x[2] / d[2]);
  if (std::string text = check_results(a, d[3], q, *out, *partial, *sums); !text.empty()) return invalid(kName, text);
  if (a.batch == 0) return ffi::Error::Success();
  a.q = q.untyped_data();
  a.k = static_cast<const unsigned char*>(k_pages.untyped_data());
  a.v = static_cast<const unsigned char*>(v_pages.untyped_data());
  a.table = table.typed_data(), a.start = start.typed_data(), a.count = count.typed_data();
  a.first_page = first_page.typed_data();
  a.partial = partial->typed_data(), a.sums = sums->typed_data(), a.out = out->typed_data();
  a.page_size = static_cast<int>(d[1]), a.pages = static_cast<int>(d[0]);
  a.table_pages = static_cast<int>(table.dimensions()[1]);
  a.splits = static_cast<int>(partial->dimensions()[2]), a.rows = static_cast<int>(partial->dimensions()[3]);
  a.window = static_cast<int>(window), a.causal = causal;
  a.scale = scale * 1.44269504088896341f;
  return launch(stream, layout, cache_name(k_pages.element_type()), static_cast<int>(d[3]), a);
}

ffi::Error Initialize(CUstream stream, float, int64_t, bool, std::string_view layout) {
  const std::string module = "attend_" + std::string(layout);
  for (const char* shape : {"attend_d256_r16_", "attend_d256_r48_", "attend_d128_r16_", "attend_d128_r32_"}) {
    for (const char* cache : {"f16", "f32", "e4m3", "e5m2"}) {
      const std::string kernel = std::string(shape) + cache;
      if (ffi::Error error = load_kernel(stream, module.c_str(), kernel.c_str()); error.failure()) return error;
    }
  }
  for (const char* kernel : {"combine_d256", "combine_d128"}) {
    if (ffi::Error error = load_kernel(stream, module.c_str(), kernel); error.failure()) return error;
  }
  return ffi::Error::Success();
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
