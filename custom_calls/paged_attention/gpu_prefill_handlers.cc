// FFI handler of prefill attention on CUDA. Nothing is allocated, nothing waits.
#include "ffi/message.h"
#include "paged_attention/gpu_launch.h"

namespace onecat::paged_attention {
namespace {

constexpr const char* kName = "attention prefill: ";
constexpr int64_t kMaxTokens = 1 << 20;

// prefill_m16n8k16.cuh keeps the queries, one or two tiles of 64 keys and values, and the codes of one more if they are float8.
unsigned shared_m16n8k16(int dim, bool float8, int stages) {
  const unsigned tile = 2 * 64 * dim * 2;
  return kPrefillRows * dim * 2 + stages * tile + (float8 ? tile / 2 : 0);
}

struct Shape {
  unsigned blocks, shared;
};

Shape shape_of(std::string_view layout, int dim, bool float8, const Device& device, AttendArgs& a) {
  if (layout == "m8n8k4") {
    const int block = block_rows(dim, kPrefillRows);
    a.rows = up(a.tokens * a.group, block) * block;
    return {static_cast<unsigned>(a.batch * a.kv_heads * (a.rows / block)), shared_m8n8k4(dim, block)};
  }
  const unsigned two = shared_m16n8k16(dim, float8, 2);
  return {static_cast<unsigned>(a.batch * a.kv_heads * a.group * up(a.tokens, kPrefillRows)),
          two <= device.shared_bytes ? two : shared_m16n8k16(dim, float8, 1)};
}

ffi::Error Prefill(CUstream stream, F16 q, Any k_pages, Any v_pages, Table table, S32 start, S32 count, Scalar first_page,
                   ffi::Result<F32> out, float scale, int64_t window, bool causal, std::string_view layout) {
  AttendArgs a{};
  const Operands operands{q, k_pages, v_pages, table, start, count, first_page};
  if (ffi::Error error = describe(kName, operands, {scale, window, causal}, layout, kMaxTokens, *out, &a); error.failure())
    return error;
  const std::string cache = cache_name(k_pages.element_type());
  if (cache == "f32") return invalid(kName, "caches are float32, must be float16, float8_e4m3fn or float8_e5m2");
  if (a.batch == 0) return ffi::Error::Success();
  a.splits = a.run = 1;
  const int dim = static_cast<int>(q.dimensions()[3]);
  const Shape shape = shape_of(layout, dim, cache[0] == 'e', device_of(stream), a);
  const std::string module = "prefill_" + std::string(layout), kernel = "prefill_d" + std::to_string(dim) + "_" + cache;
  void* pointers[] = {&a};
  return launch_kernel(stream, {module.c_str(), kernel.c_str(), shape.blocks, 1, 1, kAttendThreads, shape.shared}, pointers);
}

ffi::Error Initialize(CUstream stream, float, int64_t, bool, std::string_view layout) {
  const std::string module = "prefill_" + std::string(layout);
  for (const char* size : {"prefill_d256_", "prefill_d128_"}) {
    for (const char* cache : {"f16", "e4m3", "e5m2"}) {
      const std::string kernel = std::string(size) + cache;
      if (ffi::Error error = load_kernel(stream, module.c_str(), kernel.c_str()); error.failure()) return error;
    }
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kPrefill, Prefill,
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

const Registration kRegisterPrefill("onecat_attend_prefill_gpu_v1", "CUDA", kPrefill, kInitialize);

}  // namespace
}  // namespace onecat::paged_attention
