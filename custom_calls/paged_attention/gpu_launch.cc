#include "paged_attention/gpu_launch.h"

#include "ffi/message.h"

namespace onecat::paged_attention {

const char* cache_name(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F16: return "f16";
    case ffi::DataType::F32: return "f32";
    case ffi::DataType::F8E4M3FN: return "e4m3";
    case ffi::DataType::F8E5M2: return "e5m2";
    default: return nullptr;
  }
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

namespace {

constexpr int kPageMultiple = 16;

std::string check_caches(const Operands& o, int64_t max_tokens) {
  const auto x = o.q.dimensions(), d = o.k.dimensions();
  if (d.size() != 4 || !(d == o.v.dimensions()) || d[0] < 1 || d[1] < 1 || d[1] % kPageMultiple)
    return message("caches are ", shape_text(d), " and ", shape_text(o.v.dimensions()),
                   ", both must be [X, S, J, D] with S a multiple of ", kPageMultiple);
  if (!cache_name(o.k.element_type()) || o.v.element_type() != o.k.element_type())
    return "caches must both be float16, float32, float8_e4m3fn or float8_e5m2";
  if (d[3] != 128 && d[3] != 256) return message("head dim is ", d[3], ", must be 128 or 256");
  if (x.size() != 4 || x[1] < 1 || x[1] > max_tokens || x[3] != d[3])
    return message("new rows are ", shape_text(x), ", must be [B, 1 .. ", max_tokens, ", heads, ", d[3], "]");
  if (x[2] % d[2] || x[2] / d[2] < 1 || x[2] / d[2] > kMaxQueryHeads)
    return message(x[2], " query heads over ", d[2], " kv heads: must be 1 .. ", kMaxQueryHeads, " for each");
  return "";
}

std::string check(const Operands& o, const Sight& s, std::string_view layout, int64_t max_tokens, const F32& out) {
  if (layout != "m8n8k4" && layout != "m16n8k16") return message("layout is '", layout, "', must be m8n8k4 or m16n8k16");
  if (std::string text = check_caches(o, max_tokens); !text.empty()) return text;
  if (std::string text = check_place(o.table, o.start, o.count, o.q.dimensions()[0]); !text.empty()) return text;
  if (!(s.scale > 0.0f) || s.window < 0 || s.window > INT32_MAX)
    return message("scale is ", s.scale, " and window ", s.window, ", must be above 0 and 0 .. ", INT32_MAX);
  if (!(out.dimensions() == o.q.dimensions()))
    return message("o is ", shape_text(out.dimensions()), ", must be ", shape_text(o.q.dimensions()));
  return "";
}

}  // namespace

ffi::Error describe(const char* name, const Operands& o, const Sight& sight, std::string_view layout, int64_t max_tokens,
                    F32& out, AttendArgs* args) {
  if (std::string text = check(o, sight, layout, max_tokens, out); !text.empty()) return invalid(name, text);
  const auto x = o.q.dimensions(), d = o.k.dimensions();
  AttendArgs& a = *args;
  a.q = o.q.untyped_data();
  a.k = static_cast<const unsigned char*>(o.k.untyped_data());
  a.v = static_cast<const unsigned char*>(o.v.untyped_data());
  a.table = o.table.typed_data(), a.start = o.start.typed_data(), a.count = o.count.typed_data();
  a.first_page = o.first_page.typed_data();
  a.out = out.typed_data();
  a.batch = static_cast<int>(x[0]), a.tokens = static_cast<int>(x[1]);
  a.kv_heads = static_cast<int>(d[2]), a.group = static_cast<int>(x[2] / d[2]);
  a.page_size = static_cast<int>(d[1]), a.pages = static_cast<int>(d[0]);
  a.table_pages = static_cast<int>(o.table.dimensions()[1]);
  a.window = static_cast<int>(sight.window), a.causal = sight.causal;
  a.scale = sight.scale * 1.44269504088896341f;
  return ffi::Error::Success();
}

}  // namespace onecat::paged_attention
