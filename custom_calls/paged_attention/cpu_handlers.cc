// FFI handlers of paged attention on CPU: validation, writing keys and values, splitting over threads.
#include <algorithm>
#include <cstring>

#include "ffi/float_bits.h"
#include "ffi/operands.h"
#include "ffi/parallel.h"
#include "ffi/registry.h"
#include "paged_attention/cpu_kernels.h"

namespace ffi = xla::ffi;

namespace onecat::paged_attention {
namespace {

using Any = ffi::AnyBuffer;
using F32 = ffi::Buffer<ffi::F32>;
using Table = ffi::BufferR2<ffi::S32>;
using S32 = ffi::BufferR1<ffi::S32>;
using Scalar = ffi::BufferR0<ffi::S32>;

constexpr int64_t kParallelWork = 1 << 17;  // key elements below which another thread costs more than it brings

// ---- validation

// Which tokens the rows are and where their pages lie.
struct Place {
  Table table;
  S32 start, count;
  Scalar first_page;
};

// Caches [X, S, J, D] of one type, new rows [B, T, heads, D] in float32, float16 or bfloat16.
std::string check_buffers(const Any& k, const Any& v, const Any& rows, Storage* cache, Storage* type) {
  const auto d = k.dimensions(), x = rows.dimensions();
  if (d.size() != 4 || !(d == v.dimensions()) || d[1] < 1 || d[2] < 1)
    return message("caches are ", shape_text(d), " and ", shape_text(v.dimensions()),
                   ", both must be [X, S, J, D] with S and J above 0");
  if (!storage_of(k.element_type(), cache) || v.element_type() != k.element_type())
    return "caches must both be float32, float16, bfloat16, float8_e4m3fn or float8_e5m2";
  if (x.size() != 4 || x[3] != d[3])
    return message("new rows are ", shape_text(x), ", must be [B, T, heads, ", d[3], "]");
  if (!storage_of(rows.element_type(), type) || bytes_of(*type) < 2)
    return "new rows must be float32, float16 or bfloat16";
  return "";
}

// Pages count from the one that holds position start - back on; earlier ones aren't touched and may be anything.
std::string check_row(const Place& at, int64_t b, int64_t tokens, int64_t page_size, int64_t pages, int64_t back) {
  const int64_t start = at.start.typed_data()[b], count = at.count.typed_data()[b], width = at.table.dimensions()[1];
  if (count < 0 || count > tokens) return message("row ", b, " has count ", count, ", must be 0 .. ", tokens);
  if (count == 0) return "";
  if (start < 0 || start + count > width * page_size)
    return message("row ", b, " has tokens ", start, " .. ", start + count - 1, ", its table holds 0 .. ",
                   width * page_size - 1);
  const int64_t first = at.first_page.typed_data()[0];
  const int32_t* table = at.table.typed_data() + b * width;
  for (int64_t p = std::max<int64_t>(start - back, 0) / page_size; p * page_size < start + count; ++p) {
    if (table[p] < 0 || first + table[p] < 0 || first + table[p] >= pages)
      return message("row ", b, " has page ", table[p], " at place ", p, ", with first page ", first,
                     " it must lie in 0 .. ", pages - 1);
  }
  return "";
}

// Shapes and numbers of the tables, for a batch of [B, T, ...] that touches positions from start - back on.
std::string check_place(const Place& at, ffi::AnyBuffer::Dimensions rows, ffi::AnyBuffer::Dimensions cache, int64_t back) {
  const int64_t batch = rows[0];
  if (at.table.dimensions()[0] != batch)
    return message("the table is ", shape_text(at.table.dimensions()), ", must be [", batch, ", P]");
  for (const S32* each : {&at.start, &at.count}) {
    if (each->dimensions()[0] != batch)
      return message("start and count must be [", batch, "], one is ", shape_text(each->dimensions()));
  }
  for (int64_t b = 0; b < batch; ++b) {
    if (std::string text = check_row(at, b, rows[1], cache[1], cache[0], back); !text.empty()) return text;
  }
  return "";
}

// ---- writing

template <Storage T>
float widen(const void* data, int64_t at) {
  if constexpr (T == Storage::kF32) return static_cast<const float*>(data)[at];
  if constexpr (T == Storage::kF16) return f32_of_f16(static_cast<const uint16_t*>(data)[at]);
  if constexpr (T == Storage::kBF16) return f32_of_bf16(static_cast<const uint16_t*>(data)[at]);
}

template <Storage From, Storage To>
void convert(const void* from, void* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = widen<From>(from, i);
    if constexpr (To == Storage::kF32) static_cast<float*>(to)[i] = x;
    if constexpr (To == Storage::kF16) static_cast<uint16_t*>(to)[i] = f16_of_f32(x);
    if constexpr (To == Storage::kBF16) static_cast<uint16_t*>(to)[i] = bf16_of_f32(x);
    if constexpr (To == Storage::kE4M3) static_cast<uint8_t*>(to)[i] = e4m3_of_f32(x);
    if constexpr (To == Storage::kE5M2) static_cast<uint8_t*>(to)[i] = e5m2_of_f32(x);
  }
}

template <Storage From>
void convert_from(const void* from, Storage type, void* to, int64_t count) {
  switch (type) {
    case Storage::kF32: return convert<From, Storage::kF32>(from, to, count);
    case Storage::kF16: return convert<From, Storage::kF16>(from, to, count);
    case Storage::kBF16: return convert<From, Storage::kBF16>(from, to, count);
    case Storage::kE4M3: return convert<From, Storage::kE4M3>(from, to, count);
    case Storage::kE5M2: return convert<From, Storage::kE5M2>(from, to, count);
  }
}

void store(const char* from, Storage from_type, char* to, Storage to_type, int64_t count) {
  if (from_type == to_type) {
    std::memcpy(to, from, count * bytes_of(to_type));
    return;
  }
  switch (from_type) {
    case Storage::kF16: return convert_from<Storage::kF16>(from, to_type, to, count);
    case Storage::kBF16: return convert_from<Storage::kBF16>(from, to_type, to, count);
    default: return convert_from<Storage::kF32>(from, to_type, to, count);
  }
}

// All tokens of a batch into one cache.
void write_all(const Place& at, const Any& rows, Storage type, Any& cache, Storage cache_type) {
  const auto x = rows.dimensions();
  const int64_t size = cache.dimensions()[1], values = x[2] * x[3], width = at.table.dimensions()[1];
  const int64_t first_page = at.first_page.typed_data()[0];
  const char* from = static_cast<const char*>(rows.untyped_data());
  char* to = static_cast<char*>(cache.untyped_data());
  for (int64_t b = 0; b < x[0]; ++b) {
    for (int64_t t = 0; t < at.count.typed_data()[b]; ++t) {
      const int64_t position = at.start.typed_data()[b] + t;
      const int64_t page = first_page + at.table.typed_data()[b * width + position / size];
      store(from + (b * x[1] + t) * values * bytes_of(type), type,
            to + (page * size + position % size) * values * bytes_of(cache_type), cache_type, values);
    }
  }
}

ffi::Error Write(Any k_pages, Any v_pages, Any k, Any v, Table table, S32 start, S32 count, Scalar first_page,
                 ffi::Result<Any> new_k, ffi::Result<Any> new_v) {
  constexpr const char* kName = "key/value rows: ";
  const IeeeFloats mode;
  const Place at{table, start, count, first_page};
  Storage cache, type;
  if (std::string text = check_buffers(k_pages, v_pages, k, &cache, &type); !text.empty()) return invalid(kName, text);
  if (!(k.dimensions() == v.dimensions()) || k.element_type() != v.element_type() ||
      k.dimensions()[2] != k_pages.dimensions()[2])
    return invalid(kName, "k is ", shape_text(k.dimensions()), ", v is ", shape_text(v.dimensions()),
                   ", both must be [B, T, ", k_pages.dimensions()[2], ", D] of one type");
  if (new_k->untyped_data() != k_pages.untyped_data() || new_v->untyped_data() != v_pages.untyped_data())
    return invalid(kName, "the caches must be updated in place (input_output_aliases 0 to 0 and 1 to 1)");
  if (std::string text = check_place(at, k.dimensions(), k_pages.dimensions(), 0); !text.empty())
    return invalid(kName, text);
  write_all(at, k, type, k_pages, cache);
  write_all(at, v, type, v_pages, cache);
  return ffi::Error::Success();
}

// ---- attention

std::string check_heads(const Shape& s, const F32& out, ffi::AnyBuffer::Dimensions q) {
  if (s.dim % kDimMultiple || s.dim < kDimMultiple || s.dim > kMaxDim)
    return message("head dim is ", s.dim, ", must be a multiple of ", kDimMultiple, " up to ", kMaxDim);
  if (s.heads % s.kv_heads || s.heads / s.kv_heads > kMaxGroup)
    return message(s.heads, " query heads over ", s.kv_heads, " kv heads: must be 1 .. ", kMaxGroup, " for each");
  if (!(out.dimensions() == q)) return message("o is ", shape_text(out.dimensions()), ", must be ", shape_text(q));
  if (!(s.scale > 0.0f)) return message("scale is ", s.scale, ", must be above 0");
  if (s.window < 0) return message("window is ", s.window, ", must be 0 or more");
  return "";
}

// Pieces of work are (batch row, kv head).
void attend_all(ffi::ThreadPool& pool, const Place& at, const Any& q, const Any& k, const Any& v, const Shape& s, F32& out) {
  const int64_t batch = q.dimensions()[0], tokens = q.dimensions()[1], width = at.table.dimensions()[1];
  const int64_t layer = at.first_page.typed_data()[0] * s.page_size * s.kv_heads * s.dim * bytes_of(s.cache);
  const int32_t *start = at.start.typed_data(), *count = at.count.typed_data();
  int64_t work = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t row = s.heads * s.dim;
    std::fill(out.typed_data() + (b * tokens + count[b]) * row, out.typed_data() + (b + 1) * tokens * row, 0.0f);
    if (count[b] > 0) work += (start[b] + count[b] - first_seen(s, start[b])) * s.kv_heads * s.dim;
  }
  const Kernel body = kernel(cpu_isa());
  const int64_t items = batch * s.kv_heads;
  parallel_for(pool, items, work < kParallelWork ? std::max<int64_t>(items, 1) : 1, [&](int64_t first, int64_t last) {
    const IeeeFloats mode;
    for (int64_t item = first; item < last; ++item) {
      const int64_t b = item / s.kv_heads, at_row = b * tokens * s.heads * s.dim;
      if (count[b] == 0) continue;
      const Row row{static_cast<const char*>(q.untyped_data()) + at_row * bytes_of(s.query),
                    static_cast<const char*>(k.untyped_data()) + layer,
                    static_cast<const char*>(v.untyped_data()) + layer,
                    at.table.typed_data() + b * width,
                    start[b],
                    count[b],
                    out.typed_data() + at_row};
      body(s, row, item % s.kv_heads);
    }
  });
}

ffi::Error Attend(ffi::ThreadPool pool, Any q, Any k_pages, Any v_pages, Table table, S32 start, S32 count,
                  Scalar first_page, ffi::Result<F32> out, float scale, int64_t window, bool causal) {
  constexpr const char* kName = "attention rows: ";
  const Place at{table, start, count, first_page};
  Shape s{};
  if (std::string text = check_buffers(k_pages, v_pages, q, &s.cache, &s.query); !text.empty())
    return invalid(kName, text);
  const auto cache = k_pages.dimensions();
  s.heads = q.dimensions()[2], s.kv_heads = cache[2], s.dim = cache[3], s.page_size = cache[1];
  s.scale = scale, s.window = window, s.causal = causal;
  if (std::string text = check_heads(s, *out, q.dimensions()); !text.empty()) return invalid(kName, text);
  if (std::string text = check_place(at, q.dimensions(), cache, s.window - 1); !text.empty()) return invalid(kName, text);
  attend_all(pool, at, q, k_pages, v_pages, s, *out);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kWrite, Write,
                       ffi::Ffi::Bind()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Table>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<Scalar>()
                           .Ret<Any>()
                           .Ret<Any>());
XLA_FFI_DEFINE_HANDLER(kAttend, Attend,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Table>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<Scalar>()
                           .Ret<F32>()
                           .Attr<float>("scale")
                           .Attr<int64_t>("window")
                           .Attr<bool>("causal"));

const Registration kRegisterWrite("onecat_kv_write_rows_cpu_v1", "cpu", kWrite);
const Registration kRegisterAttend("onecat_attend_rows_cpu_v2", "cpu", kAttend);

}  // namespace
}  // namespace onecat::paged_attention
