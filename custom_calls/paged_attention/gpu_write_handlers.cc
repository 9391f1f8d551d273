// FFI handlers of key/value writing on CUDA, with and without norm and rotary embedding. Nothing is allocated, nothing waits. A
// token whose place lies outside the cache is dropped.
#include "ffi/message.h"
#include "paged_attention/gpu_launch.h"
#include "paged_attention/write_args.h"

namespace onecat::paged_attention {
namespace {

constexpr const char* kName = "key/value rows: ";
constexpr const char* kHeads = "query, key and value heads: ";
constexpr const char* kModule = "kv_write";

bool element_of(ffi::DataType type, Element* out) {
  Storage storage;
  if (!storage_of(type, &storage)) return false;
  switch (storage) {
    case Storage::kF32: *out = kElementF32; return true;
    case Storage::kF16: *out = kElementF16; return true;
    case Storage::kBF16: *out = kElementBF16; return true;
    case Storage::kE4M3: *out = kElementE4M3; return true;
    case Storage::kE5M2: *out = kElementE5M2; return true;
  }
  return false;
}

std::string check_pages(const Any& k_pages, const Any& v_pages, const Any& new_k, const Any& new_v, Element* type) {
  const auto d = k_pages.dimensions();
  if (d.size() != 4 || !(d == v_pages.dimensions()) || d[0] < 1 || d[1] < 1)
    return message("caches are ", shape_text(d), " and ", shape_text(v_pages.dimensions()), ", both must be [X, S, J, D]");
  if (!element_of(k_pages.element_type(), type) || v_pages.element_type() != k_pages.element_type())
    return "caches must both be float32, float16, bfloat16, float8_e4m3fn or float8_e5m2";
  if (new_k.untyped_data() != k_pages.untyped_data() || new_v.untyped_data() != v_pages.untyped_data())
    return "the caches must be updated in place (input_output_aliases 0 to 0 and 1 to 1)";
  return "";
}

Places places_of(Any& k_pages, Any& v_pages, const Table& table, const S32& start, const S32& count, const Scalar& first_page,
                 int64_t tokens) {
  Places at{};
  at.k_pages = k_pages.untyped_data(), at.v_pages = v_pages.untyped_data();
  at.table = table.typed_data(), at.start = start.typed_data(), at.count = count.typed_data();
  at.first_page = first_page.typed_data();
  at.batch = static_cast<int>(table.dimensions()[0]), at.tokens = static_cast<int>(tokens);
  at.page_size = static_cast<int>(k_pages.dimensions()[1]), at.pages = static_cast<int>(k_pages.dimensions()[0]);
  at.table_pages = static_cast<int>(table.dimensions()[1]);
  return at;
}

// ---- keys and values as they are

std::string check_rows(const Any& k_pages, const Any& k, const Any& v, WriteArgs* a) {
  const auto d = k_pages.dimensions(), x = k.dimensions();
  if (x.size() != 4 || !(x == v.dimensions()) || x[2] != d[2] || x[3] != d[3] || k.element_type() != v.element_type())
    return message("k is ", shape_text(x), ", v is ", shape_text(v.dimensions()), ", both must be [B, T, ", d[2], ", ", d[3],
                   "] of one type");
  if (d[2] * d[3] % kWriteValues) return message("J * D is ", d[2] * d[3], ", must be a multiple of ", kWriteValues);
  if (!element_of(k.element_type(), &a->from) || a->from >= kElementE4M3)
    return "new rows must be float32, float16 or bfloat16";
  return "";
}

ffi::Error Write(CUstream stream, Any k_pages, Any v_pages, Any k, Any v, Table table, S32 start, S32 count, Scalar first_page,
                 ffi::Result<Any> new_k, ffi::Result<Any> new_v) {
  WriteArgs a{};
  if (std::string text = check_pages(k_pages, v_pages, *new_k, *new_v, &a.to); !text.empty()) return invalid(kName, text);
  if (std::string text = check_rows(k_pages, k, v, &a); !text.empty()) return invalid(kName, text);
  const auto x = k.dimensions();
  if (std::string text = check_place(table, start, count, x[0]); !text.empty()) return invalid(kName, text);
  a.at = places_of(k_pages, v_pages, table, start, count, first_page, x[1]);
  a.k = k.untyped_data(), a.v = v.untyped_data(), a.values = static_cast<int>(x[2] * x[3]);
  const int64_t threads = x[0] * x[1] * (a.values / kWriteValues);
  if (threads == 0) return ffi::Error::Success();
  void* pointers[] = {&a};
  const unsigned blocks = static_cast<unsigned>((threads + kWriteThreads - 1) / kWriteThreads);
  return launch_kernel(stream, {kModule, kModule, blocks, 2, 1, kWriteThreads, 0}, pointers);
}

// ---- normed and turned

std::string check_heads(const Any& k_pages, const F16& qkv, const F32& q_norm, const F32& k_norm, const F32& cos,
                        const F32& sin, const F32& scales, const F16& q) {
  const auto d = k_pages.dimensions(), x = qkv.dimensions(), o = q.dimensions(), c = cos.dimensions();
  if (d[3] != 128 && d[3] != 256) return message("head dim is ", d[3], ", must be 128 or 256");
  if (x.size() != 3 || o.size() != 4 || !has_shape(o, {x[0], x[1], o[2], d[3]}))
    return message("rows are ", shape_text(x), " and q is ", shape_text(o), ", must be [B, T, N] and [B, T, H, ", d[3], "]");
  if (!has_shape(q_norm.dimensions(), {d[3]}) || !has_shape(k_norm.dimensions(), {d[3]}) ||
      !has_shape(scales.dimensions(), {2}))
    return message("norms must be [", d[3], "] and scales [2]");
  if (c.size() != 3 || !(c == sin.dimensions()) || !has_shape(c, {x[0], x[1], c[2]}) || c[2] % (d[3] / 32) || 2 * c[2] > d[3])
    return message("cos is ", shape_text(c), ", must be as sin [", x[0], ", ", x[1], ", a multiple of ", d[3] / 32, " up to ",
                   d[3] / 2, "]");
  return "";
}

std::string check_columns(const HeadArgs& a, int64_t dim) {
  const int64_t end = a.v_at + a.kv_heads * dim;
  if (a.q_stride < dim || a.k_at < 0 || a.v_at < 0 || a.q_stride % 8 || a.k_at % 8 || a.v_at % 8 || a.width % 8 ||
      (a.heads - 1) * static_cast<int64_t>(a.q_stride) + dim > a.width || a.k_at + a.kv_heads * dim > a.width || end > a.width)
    return message("q heads ", a.q_stride, " apart, keys at ", a.k_at, " and values at ", a.v_at, " don't lie in rows of ",
                   a.width, " at multiples of 8");
  return "";
}

ffi::Error WriteHeads(CUstream stream, Any k_pages, Any v_pages, F16 qkv, F32 q_norm, F32 k_norm, F32 cos, F32 sin, F32 scales,
                      Table table, S32 start, S32 count, Scalar first_page, ffi::Result<Any> new_k, ffi::Result<Any> new_v,
                      ffi::Result<F16> q, float eps, int32_t q_stride, int32_t k_at, int32_t v_at) {
  HeadArgs a{};
  if (std::string text = check_pages(k_pages, v_pages, *new_k, *new_v, &a.to); !text.empty()) return invalid(kHeads, text);
  if (std::string text = check_heads(k_pages, qkv, q_norm, k_norm, cos, sin, scales, *q); !text.empty())
    return invalid(kHeads, text);
  const auto x = qkv.dimensions(), d = k_pages.dimensions();
  if (std::string text = check_place(table, start, count, x[0]); !text.empty()) return invalid(kHeads, text);
  a.at = places_of(k_pages, v_pages, table, start, count, first_page, x[1]);
  a.qkv = qkv.untyped_data(), a.q = q->untyped_data();
  a.q_norm = q_norm.typed_data(), a.k_norm = k_norm.typed_data(), a.scales = scales.typed_data();
  a.cos = cos.typed_data(), a.sin = sin.typed_data(), a.half = static_cast<int>(cos.dimensions()[2]);
  a.width = static_cast<int>(x[2]), a.q_stride = q_stride, a.k_at = k_at, a.v_at = v_at, a.eps = eps;
  a.heads = static_cast<int>(q->dimensions()[2]), a.kv_heads = static_cast<int>(d[2]);
  if (std::string text = check_columns(a, d[3]); !text.empty()) return invalid(kHeads, text);
  const int64_t warps = x[0] * x[1] * (a.heads + 2 * a.kv_heads), each = kWriteThreads / 32;
  if (warps == 0) return ffi::Error::Success();
  void* pointers[] = {&a};
  const std::string kernel = "write_heads_d" + std::to_string(d[3]);
  const unsigned blocks = static_cast<unsigned>((warps + each - 1) / each);
  return launch_kernel(stream, {kModule, kernel.c_str(), blocks, 1, 1, kWriteThreads, 0}, pointers);
}

ffi::Error Initialize(CUstream stream) { return load_kernel(stream, kModule, kModule); }

ffi::Error InitializeHeads(CUstream stream, float, int32_t, int32_t, int32_t) {
  if (ffi::Error error = load_kernel(stream, kModule, "write_heads_d128"); error.failure()) return error;
  return load_kernel(stream, kModule, "write_heads_d256");
}

XLA_FFI_DEFINE_HANDLER(kWrite, Write,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Table>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<Scalar>()
                           .Ret<Any>()
                           .Ret<Any>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize, ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Ctx<Stream>());

XLA_FFI_DEFINE_HANDLER(kWriteHeads, WriteHeads,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<F16>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<Table>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<Scalar>()
                           .Ret<Any>()
                           .Ret<Any>()
                           .Ret<F16>()
                           .Attr<float>("eps")
                           .Attr<int32_t>("q_stride")
                           .Attr<int32_t>("k_at")
                           .Attr<int32_t>("v_at"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInitializeHeads, InitializeHeads,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<Stream>()
                           .Attr<float>("eps")
                           .Attr<int32_t>("q_stride")
                           .Attr<int32_t>("k_at")
                           .Attr<int32_t>("v_at"));

const Registration kRegisterWrite("onecat_kv_write_rows_gpu_v1", "CUDA", kWrite, kInitialize);
const Registration kRegisterHeads("onecat_write_heads_gpu_v1", "CUDA", kWriteHeads, kInitializeHeads);

}  // namespace
}  // namespace onecat::paged_attention
