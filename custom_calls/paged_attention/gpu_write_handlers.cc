// FFI handler of key/value writing on CUDA. Nothing is allocated, nothing waits. A token whose place lies outside the cache is
// dropped.
#include "ffi/message.h"
#include "paged_attention/gpu_launch.h"
#include "paged_attention/write_args.h"

namespace onecat::paged_attention {
namespace {

constexpr const char* kName = "key/value rows: ";
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

std::string check(const Any& k_pages, const Any& v_pages, const Any& k, const Any& v, WriteArgs* a) {
  const auto d = k_pages.dimensions(), x = k.dimensions();
  if (d.size() != 4 || !(d == v_pages.dimensions()) || d[0] < 1 || d[1] < 1)
    return message("caches are ", shape_text(d), " and ", shape_text(v_pages.dimensions()), ", both must be [X, S, J, D]");
  if (x.size() != 4 || !(x == v.dimensions()) || x[2] != d[2] || x[3] != d[3] || k.element_type() != v.element_type())
    return message("k is ", shape_text(x), ", v is ", shape_text(v.dimensions()), ", both must be [B, T, ", d[2], ", ", d[3],
                   "] of one type");
  if (d[2] * d[3] % kWriteValues) return message("J * D is ", d[2] * d[3], ", must be a multiple of ", kWriteValues);
  if (!element_of(k_pages.element_type(), &a->to) || v_pages.element_type() != k_pages.element_type())
    return "caches must both be float32, float16, bfloat16, float8_e4m3fn or float8_e5m2";
  if (!element_of(k.element_type(), &a->from) || a->from >= kElementE4M3)
    return "new rows must be float32, float16 or bfloat16";
  return "";
}

ffi::Error Write(CUstream stream, Any k_pages, Any v_pages, Any k, Any v, Table table, S32 start, S32 count, Scalar first_page,
                 ffi::Result<Any> new_k, ffi::Result<Any> new_v) {
  WriteArgs a{};
  if (std::string text = check(k_pages, v_pages, k, v, &a); !text.empty()) return invalid(kName, text);
  const auto d = k_pages.dimensions(), x = k.dimensions();
  if (std::string text = check_place(table, start, count, x[0]); !text.empty()) return invalid(kName, text);
  if (new_k->untyped_data() != k_pages.untyped_data() || new_v->untyped_data() != v_pages.untyped_data())
    return invalid(kName, "the caches must be updated in place (input_output_aliases 0 to 0 and 1 to 1)");
  a.k = k.untyped_data(), a.v = v.untyped_data();
  a.k_pages = k_pages.untyped_data(), a.v_pages = v_pages.untyped_data();
  a.table = table.typed_data(), a.start = start.typed_data(), a.count = count.typed_data();
  a.first_page = first_page.typed_data();
  a.batch = static_cast<int>(x[0]), a.tokens = static_cast<int>(x[1]), a.values = static_cast<int>(x[2] * x[3]);
  a.page_size = static_cast<int>(d[1]), a.pages = static_cast<int>(d[0]);
  a.table_pages = static_cast<int>(table.dimensions()[1]);
  const int64_t threads = x[0] * x[1] * (a.values / kWriteValues);
  if (threads == 0) return ffi::Error::Success();
  void* pointers[] = {&a};
  const unsigned blocks = static_cast<unsigned>((threads + kWriteThreads - 1) / kWriteThreads);
  return launch_kernel(stream, {kModule, kModule, blocks, 2, 1, kWriteThreads, 0}, pointers);
}

ffi::Error Initialize(CUstream stream) { return load_kernel(stream, kModule, kModule); }

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

const Registration kRegisterWrite("onecat_kv_write_rows_gpu_v1", "CUDA", kWrite, kInitialize);

}  // namespace
}  // namespace onecat::paged_attention
