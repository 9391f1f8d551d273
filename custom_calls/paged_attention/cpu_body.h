// The kernel of cpu_kernels.h, written once over sixteen lanes V (see ffi/lanes_generic.h). Everything is in an unnamed
// namespace: the same source is compiled for several instruction sets, and the linker must not merge the results.
#pragma once
#include "ffi/lanes_math.h"
#include "paged_attention/cpu_kernels.h"

namespace onecat::paged_attention {
namespace {

constexpr int kQueries = kMaxGroup;  // of one pass over the keys
constexpr int kTile = 64;            // keys of one softmax step
constexpr int kPanel = 16;           // keys expanded to float32 at a time
constexpr float kLowest = -__builtin_inff();

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Keys first .. last - 1, at absolute positions or inside a panel; empty when last isn't above first.
struct Span {
  int64_t first, last;

  bool empty() const { return last <= first; }
  Span both(const Span& other) const { return {most(first, other.first), least(last, other.last)}; }
  Span from(int64_t origin) const { return {first - origin, last - origin}; }
};

// Queries of one pass, their softmax so far, and the tile's probabilities.
struct Pass {
  int count;
  const float* q[kQueries];  // [D]
  float* out[kQueries];      // [D]
  Span seen[kQueries];       // positions
  Span any;                  // from the first key that some query sees to the last
  float top[kQueries], total[kQueries];
  alignas(64) float p[kQueries][kTile];
};

// Rows of up to kPanel keys or values.
struct Panel {
  const float* row[kPanel];
  alignas(64) float expanded[kPanel][kMaxDim];
};

template <class V, Storage T>
void expand(const void* data, int64_t at, int64_t dim, float* out) {
  for (int64_t i = 0; i < dim; i += kLanes) load_as<V, T>(data, at + i).store(out + i);
}

// Asks for the row that will be read one panel later.
inline void prefetch(const char* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
}

// Where the rows of one kv head lie.
struct Head {
  const Shape& s;
  const Row& row;
  const void* cache;
  int64_t kv_head;

  int64_t at(int64_t position) const {
    const int64_t page = row.table[position / s.page_size];
    return ((page * s.page_size + position % s.page_size) * s.kv_heads + kv_head) * s.dim;
  }
};

template <class V, Storage T>
void fill(const Head& head, int64_t position, const Span& rows, int64_t last, bool copy, Panel& panel) {
  constexpr int64_t kSize = bytes_of(T);
  const int64_t dim = head.s.dim;
  for (int64_t i = rows.first; i < rows.last; ++i) {
    const int64_t at = head.at(position + i);
    if (T == Storage::kF32 && !copy) {
      panel.row[i] = static_cast<const float*>(head.cache) + at;
      continue;
    }
    if (position + i + kPanel < last)
      prefetch(static_cast<const char*>(head.cache) + head.at(position + i + kPanel) * kSize, dim * kSize);
    expand<V, T>(head.cache, at, dim, panel.expanded[i]);
    panel.row[i] = panel.expanded[i];
  }
  // Computed with, never used: what lies there, and which page it would be, is nobody's business.
  for (int64_t i = 0; i < rows.first; ++i) panel.row[i] = panel.row[rows.first];
  for (int64_t i = rows.last; i < kPanel; ++i) panel.row[i] = panel.row[rows.last - 1];
}

// Some rows of the panel at `position`; the pass ends before position `last`. Float32 rows are read where they are unless
// many queries read them: rows of one head are far apart and would push each other out of the first-level cache.
template <class V>
void fill(const Head& head, int64_t position, const Span& rows, int64_t last, bool copy, Panel& panel) {
  switch (head.s.cache) {
    case Storage::kF32: return fill<V, Storage::kF32>(head, position, rows, last, copy, panel);
    case Storage::kF16: return fill<V, Storage::kF16>(head, position, rows, last, copy, panel);
    case Storage::kBF16: return fill<V, Storage::kBF16>(head, position, rows, last, copy, panel);
    case Storage::kE4M3: return fill<V, Storage::kE4M3>(head, position, rows, last, copy, panel);
    case Storage::kE5M2: return fill<V, Storage::kE5M2>(head, position, rows, last, copy, panel);
  }
}

// ---- logits of M queries from query n0 on with the panel's keys, into the tile's columns from `column` on

// How many keys or lane groups go with M queries: a power of two that the registers hold.
template <class V, int M, int kMost>
constexpr int block_size() {
  int size = 1;
  while (2 * size * M <= V::kSums && 2 * size <= kMost) size *= 2;
  return size;
}

template <class V, int M>
void multiply_keys(Pass& pass, int n0, const Panel& panel, int64_t count, int64_t dim, int64_t column) {
  constexpr int K = block_size<V, M, 4>();
  for (int64_t key = 0; key < count; key += K) {
    V sums[M][K];
    for (int m = 0; m < M; ++m)
      for (int r = 0; r < K; ++r) sums[m][r] = V::all(0.0f);
    for (int64_t i = 0; i < dim; i += kLanes) {
      V k[K];
      for (int r = 0; r < K; ++r) k[r] = V::load(panel.row[key + r] + i);
      for (int m = 0; m < M; ++m) {
        const V q = V::load(pass.q[n0 + m] + i);
        for (int r = 0; r < K; ++r) sums[m][r] = V::fma(q, k[r], sums[m][r]);
      }
    }
    for (int m = 0; m < M; ++m) V::template fold<K>(sums[m], pass.p[n0 + m] + column + key);
  }
}

// ---- softmax of one query over the tile: logits become probabilities

template <class V>
float highest(const V& x) {
  alignas(64) float lanes[kLanes];
  x.store(lanes);
  float top = lanes[0];
  for (int i = 1; i < kLanes; ++i) top = lanes[i] > top ? lanes[i] : top;
  return top;
}

// Only lane groups with visible keys are touched.
template <class V>
void softmax(const Shape& s, Pass& pass, int n, const Span& visible) {
  float* p = pass.p[n];
  const int64_t first = visible.first / kLanes * kLanes, last = (visible.last + kLanes - 1) / kLanes * kLanes;
  const auto hide = [&](float value) {
    for (int64_t i = first; i < visible.first; ++i) p[i] = value;
    for (int64_t i = visible.last; i < last; ++i) p[i] = value;
  };
  hide(kLowest);
  const V scale = V::all(s.scale);
  V highs = V::all(kLowest);
  for (int64_t i = first; i < last; i += kLanes) {
    const V logit = V::mul(V::load(p + i), scale);
    logit.store(p + i);
    highs = V::more(highs, logit);
  }
  const float top = highest(V::more(V::all(pass.top[n]), highs));
  for (int64_t i = first; i < last; i += kLanes) exp_lanes(V::sub(V::load(p + i), V::all(top))).store(p + i);
  hide(0.0f);
  V sum = V::all(0.0f);
  for (int64_t i = first; i < last; i += kLanes) sum = V::add(sum, V::load(p + i));
  float added, fade[kLanes];
  V::template fold<1>(&sum, &added);
  exp_lanes(V::all(pass.top[n] - top)).store(fade);
  pass.top[n] = top;
  pass.total[n] = pass.total[n] * fade[0] + added;
  if (fade[0] == 1.0f) return;
  for (int64_t i = 0; i < s.dim; i += kLanes) V::mul(V::load(pass.out[n] + i), V::all(fade[0])).store(pass.out[n] + i);
}

// ---- values: out += p v for M queries over B lane groups, some keys of the panel

template <class V, int M, int B>
inline void add_values(Pass& pass, int n0, const Panel& panel, const Span& keys, int64_t column, int64_t i) {
  V sums[M][B];
  for (int m = 0; m < M; ++m)
    for (int b = 0; b < B; ++b) sums[m][b] = V::load(pass.out[n0 + m] + i + b * kLanes);
  for (int64_t key = keys.first; key < keys.last; ++key) {
    V v[B];
    for (int b = 0; b < B; ++b) v[b] = V::load(panel.row[key] + i + b * kLanes);
    for (int m = 0; m < M; ++m) {
      const V p = V::all(pass.p[n0 + m][column + key]);
      for (int b = 0; b < B; ++b) sums[m][b] = V::fma(p, v[b], sums[m][b]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int b = 0; b < B; ++b) sums[m][b].store(pass.out[n0 + m] + i + b * kLanes);
}

// Lane groups from i on: as many at once as the registers hold, then half of that.
template <class V, int M, int B>
inline void add_all_values(Pass& pass, int n0, const Panel& panel, const Span& keys, int64_t column, int64_t dim, int64_t i) {
  for (; i + B * kLanes <= dim; i += B * kLanes) add_values<V, M, B>(pass, n0, panel, keys, column, i);
  if constexpr (B > 1) {
    if (i < dim) add_all_values<V, M, B / 2>(pass, n0, panel, keys, column, dim, i);
  }
}

template <class V, int M>
inline void add_keys(const Shape& s, Pass& pass, int n0, const Panel& panel, const Span& keys, int64_t column) {
  if (!keys.empty()) add_all_values<V, M, block_size<V, M, 8>()>(pass, n0, panel, keys, column, s.dim, 0);
}

// Keys that all M queries see together; what only some of them see before and after is added one query at a time, so that
// each query takes its keys in ascending order.
template <class V, int M>
void multiply_values(const Shape& s, Pass& pass, int n0, const Panel& panel, int64_t position, int64_t count, int64_t column) {
  Span seen[M], shared{0, count};
  for (int m = 0; m < M; ++m) {
    seen[m] = pass.seen[n0 + m].from(position).both({0, count});
    shared = shared.both(seen[m]);
  }
  if (shared.empty()) shared = {count, count};
  for (int m = 0; m < M; ++m) add_keys<V, 1>(s, pass, n0 + m, panel, seen[m].both({0, shared.first}), column);
  add_keys<V, M>(s, pass, n0, panel, shared, column);
  for (int m = 0; m < M; ++m) add_keys<V, 1>(s, pass, n0 + m, panel, seen[m].both({shared.last, count}), column);
}

// ---- a pass over the keys

// Calls f(block size as a type, first query) for blocks of at most M queries.
template <int M>
struct Rows {
  static constexpr int value = M;
};

template <int M, class F>
inline void in_blocks(int n, int last, const F& f) {
  for (; n + M <= last; n += M) f(Rows<M>{}, n);
  if constexpr (M > 1) {
    if (n < last) in_blocks<M - 1>(n, last, f);
  }
}

// Calls f(position of the panel, column in the tile, rows that some query may see) for the tile's panels.
template <class F>
inline void each_panel(int64_t position, const Span& any, const F& f) {
  for (int64_t column = 0; column < kTile; column += kPanel) {
    const Span rows = any.from(position + column).both({0, kPanel});
    if (!rows.empty()) f(position + column, column, rows);
  }
}

template <class V>
void add_tile(const Head& k, const Head& v, int64_t position, Pass& pass, Panel& panel) {
  const Shape& s = k.s;
  const bool copy = pass.count > V::kRows;
  each_panel(position, pass.any, [&](int64_t at, int64_t column, const Span& rows) {
    fill<V>(k, at, rows, pass.any.last, copy, panel);
    in_blocks<V::kRows>(0, pass.count, [&](auto block, int n) {
      multiply_keys<V, decltype(block)::value>(pass, n, panel, rows.last, s.dim, column);
    });
  });
  for (int n = 0; n < pass.count; ++n) {
    const Span visible = pass.seen[n].from(position).both({0, kTile});
    if (!visible.empty()) softmax<V>(s, pass, n, visible);
  }
  each_panel(position, pass.any, [&](int64_t at, int64_t column, const Span& rows) {
    fill<V>(v, at, rows, pass.any.last, copy, panel);
    in_blocks<V::kRows>(0, pass.count, [&](auto block, int n) {
      multiply_values<V, decltype(block)::value>(s, pass, n, panel, at, rows.last, column);
    });
  });
}

template <class V>
const float* query(const Shape& s, const Row& row, int64_t at, float* expanded) {
  if (s.query == Storage::kF32) return static_cast<const float*>(row.q) + at;
  if (s.query == Storage::kF16) {
    expand<V, Storage::kF16>(row.q, at, s.dim, expanded);
  } else {
    expand<V, Storage::kBF16>(row.q, at, s.dim, expanded);
  }
  return expanded;
}

// Positions that a query at `position` sees.
inline Span sight(const Shape& s, const Row& row, int64_t position) {
  return {first_seen(s, position), s.causal ? position + 1 : row.start + row.count};
}

// Fills a pass with the query heads of tokens first .. last - 1; room for their expansion is in `queries`.
template <class V>
void begin(const Shape& s, const Row& row, int64_t kv_head, int64_t first, int64_t last, Pass& pass, float* queries) {
  const int64_t group = s.heads / s.kv_heads;
  pass.count = 0;
  pass.any = {sight(s, row, row.start + first).first, sight(s, row, row.start + last - 1).last};
  for (int64_t t = first; t < last; ++t) {
    for (int64_t g = 0; g < group; ++g) {
      const int n = pass.count++;
      const int64_t at = (t * s.heads + kv_head * group + g) * s.dim;
      pass.q[n] = query<V>(s, row, at, queries + n * s.dim);
      pass.out[n] = row.out + at;
      pass.seen[n] = sight(s, row, row.start + t);
      pass.top[n] = kLowest;
      pass.total[n] = 0.0f;
      for (int64_t i = 0; i < s.dim; i += kLanes) V::all(0.0f).store(row.out + at + i);
    }
  }
}

template <class V>
void finish(const Shape& s, Pass& pass) {
  for (int n = 0; n < pass.count; ++n) {
    if (pass.seen[n].empty()) continue;  // stays zero
    const V total = V::all(pass.total[n]);
    for (int64_t i = 0; i < s.dim; i += kLanes) V::div(V::load(pass.out[n] + i), total).store(pass.out[n] + i);
  }
}

template <class V>
void run(const Shape& s, const Row& row, int64_t kv_head) {
  alignas(64) float queries[kQueries * kMaxDim];
  Pass pass;
  Panel panel;
  const Head k{s, row, row.k, kv_head}, v{s, row, row.v, kv_head};
  const int64_t together = kQueries / (s.heads / s.kv_heads);
  for (int64_t first = 0; first < row.count; first += together) {
    begin<V>(s, row, kv_head, first, least(first + together, row.count), pass, queries);
    for (int64_t position = pass.any.first / kTile * kTile; position < pass.any.last; position += kTile)
      add_tile<V>(k, v, position, pass, panel);
    finish<V>(s, pass);
  }
}

}  // namespace
}  // namespace onecat::paged_attention
