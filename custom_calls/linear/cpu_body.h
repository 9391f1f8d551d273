// The kernels of cpu_kernels.h, written once over a vector type V of 16 lanes (cpu_generic.cc, *_avx2.cc, *_avx512.cc).
//
// V gives: zero, load, load_f16, load_bf16, load_first(n), store, fma(a, b, c), times(a, number), f16 (one number),
// decode (16 bytes of two E2M1 groups, what 16 codes of each stand for), decode_e4m3 (32 bytes), decode_int4 (16 bytes of two
// groups, zero point and scale), fold<R> (R times 16 sums to R); and the block sizes that its registers allow:
//   kDirectX        activation rows that are taken all together, with weights decoded on the way;
//   kBlockX         activation rows taken together where there are more;
//   direct_rows(m)  weight rows taken together with m of them when weights are decoded on the way;
//   kTileW          weight rows of a panel.
//
// Few activation rows: weights are decoded in registers on the way. More: a panel of weights is decoded into a buffer that
// stays in the first-level cache, and all activation rows pass over it. Everything is in an unnamed namespace: the same
// source is compiled for several instruction sets, and the linker must not merge the results.
#pragma once
#include "linear/cpu_kernels.h"
#include "linear/cpu_scalar.h"

namespace onecat::linear {
namespace {

// Rows of a tile are short, so the hardware's prefetcher stops where it has just begun: the weights that come next are asked
// for by hand, that far ahead.
constexpr int64_t kAhead = 4096;  // bytes

inline void ask_for(const void* data) { __builtin_prefetch(static_cast<const char*>(data) + kAhead); }

// ---- weight sources: load<R>(unit, row, out) gives R rows of `kGroups` groups of 16 values. For more than `kDirectBlocks`
// blocks of activation rows a panel pays: decoding costs more than reading again.

template <class V>
struct Nvfp4Source {
  static constexpr int kGroups = 2;
  static constexpr int kDirectBlocks = 1;
  const uint8_t* codes;
  const uint8_t* scales;
  const float* products;
  int64_t groups;

  Nvfp4Source(const Nvfp4Weight& w, int64_t tile)
      : codes(w.codes + tile * w.units * kTileRows * kLanes),
        scales(w.scales + tile * w.units * kTileRows * 2),
        products(w.products),
        groups(w.units * 2) {}

  template <int R>
  inline void load(int64_t unit, int row, V (*out)[kGroups]) const {
    ask_for(codes + (unit * kTileRows + row) * kLanes);
    for (int r = 0; r < R; ++r) {
      const int64_t at = unit * kTileRows + row + r;
      const float *first = products + scales[at * 2] * kLanes, *second = products + scales[at * 2 + 1] * kLanes;
      V::decode(codes + at * kLanes, first, second, out[r]);
    }
  }
};

template <class V, DenseType T>
inline V load_as(const void* data, int64_t at) {
  if constexpr (T == DenseType::kF32) return V::load(static_cast<const float*>(data) + at);
  if constexpr (T == DenseType::kF16) return V::load_f16(static_cast<const uint16_t*>(data) + at);
  if constexpr (T == DenseType::kBF16) return V::load_bf16(static_cast<const uint16_t*>(data) + at);
}

// A scale of any storage as float32.
template <class V, DenseType T>
inline float scale_as(const void* data, int64_t at) {
  if constexpr (T == DenseType::kF32) return static_cast<const float*>(data)[at];
  if constexpr (T == DenseType::kF16) return V::f16(static_cast<const uint16_t*>(data)[at]);
  if constexpr (T == DenseType::kBF16) return f32_of_bf16(static_cast<const uint16_t*>(data)[at]);
}

constexpr int kUnitK = 32;     // of NVFP4, FP8 and INT4
constexpr int kBlockUnits = 4;  // of an FP8 scale

template <class V, bool kBlocks>
struct Fp8Source {
  static constexpr int kGroups = 2;
  static constexpr int kDirectBlocks = 1;
  const uint8_t* codes;
  const float* scales;
  int64_t groups;

  Fp8Source(const Fp8Weight& w, int64_t tile)
      : codes(w.codes + tile * w.units * kTileRows * kUnitK),
        scales(kBlocks ? w.blocks + tile * w.groups * kTileRows : nullptr),
        groups(w.units * 2) {}

  template <int R>
  inline void load(int64_t unit, int row, V (*out)[kGroups]) const {
    for (int r = 0; r < R; ++r) {
      if (r % 2 == 0) ask_for(codes + (unit * kTileRows + row + r) * kUnitK);
      V::decode_e4m3(codes + (unit * kTileRows + row + r) * kUnitK, out[r]);
      if constexpr (kBlocks) {
        const float scale = scales[unit / kBlockUnits * kTileRows + row + r] * kE4M3Unit;
        for (int g = 0; g < kGroups; ++g) out[r][g] = V::times(out[r][g], scale);
      }
    }
  }
};

template <class V, DenseType T>
struct Int4Source {
  static constexpr int kGroups = 2;
  static constexpr int kDirectBlocks = 1;
  const uint8_t* codes;
  const void* scales;
  const uint8_t* zeros;
  int64_t first;          // scale of the tile
  uint32_t scale_units;   // of a scale
  int64_t groups;

  Int4Source(const Int4Weight& w, int64_t tile)
      : codes(w.codes + tile * w.units * kTileRows * kLanes),
        scales(w.scales),
        zeros(w.zeros),
        first(tile * w.groups * kTileRows),
        scale_units(static_cast<uint32_t>(w.units / w.groups)),
        groups(w.units * 2) {}

  template <int R>
  inline void load(int64_t unit, int row, V (*out)[kGroups]) const {
    const int64_t group = first + static_cast<uint32_t>(unit) / scale_units * kTileRows + row;
    ask_for(codes + (unit * kTileRows + row) * kLanes);
    for (int r = 0; r < R; ++r) {
      const int64_t at = unit * kTileRows + row + r;
      V::decode_int4(codes + at * kLanes, zeros[group + r], scale_as<V, T>(scales, group + r), out[r]);
    }
  }
};

template <class V, DenseType T>
struct DenseSource {
  static constexpr int kGroups = 1;
  static constexpr int kDirectBlocks = 2;
  static constexpr int kBytes = T == DenseType::kF32 ? 4 : 2;
  const void* data;
  int64_t k, first, last_row;
  int64_t groups;  // whole ones

  DenseSource(const DenseWeight& w, int64_t tile)
      : data(w.data), k(w.k), first(tile * kTileRows), last_row(w.n - 1), groups(w.k / kLanes) {}

  // Rows beyond the last one repeat it; nobody stores what comes of them.
  int64_t row_start(int row) const { return (first + row < last_row ? first + row : last_row) * k; }

  template <int R>
  inline void load(int64_t unit, int row, V (*out)[kGroups]) const {
    for (int r = 0; r < R; ++r) {
      const int64_t at = row_start(row + r) + unit * kLanes;
      ask_for(static_cast<const char*>(data) + at * kBytes);
      out[r][0] = load_as<V, T>(data, at);
    }
  }
};

// A decoded panel: R rows of `stride` floats.
template <class V>
struct PanelSource {
  static constexpr int kGroups = 1;
  const float* data;
  int64_t stride;

  template <int R>
  inline void load(int64_t unit, int row, V (*out)[kGroups]) const {
    for (int r = 0; r < R; ++r) out[r][0] = V::load(data + (row + r) * stride + unit * kLanes);
  }
};

// ---- the inner loop: sums[m][r] += x[m] . w[row + r] over units first .. last - 1; x starts at unit 0.

template <class V, int R, int M, class Source>
inline void multiply(const Source& w, int row, int64_t first, int64_t last, const float* const* x, V (*sums)[R]) {
  constexpr int G = Source::kGroups;
  for (int64_t unit = first; unit < last; ++unit) {
    V values[R][G];
    w.template load<R>(unit, row, values);
    for (int g = 0; g < G; ++g) {
      for (int m = 0; m < M; ++m) {
        const V a = V::load(x[m] + (unit * G + g) * kLanes);
        for (int r = 0; r < R; ++r) sums[m][r] = V::fma(values[r][g], a, sums[m][r]);
      }
    }
  }
}

struct Output {
  int64_t n0, n;        // first row of the tile, rows of the weight
  const float* global;  // a multiple of 8 values, or null
  float factor;         // of these, a power of two
};

template <class V, int R, int M>
inline void finish(const Output& out, int row, const V (*sums)[R], float* const* y) {
  const int64_t at = out.n0 + row;
  const int64_t rows = out.n - at < R ? out.n - at : R;
  for (int m = 0; m < M; ++m) {
    float folded[R];
    V::template fold<R>(sums[m], folded);
    if (out.global) {
      for (int r = 0; r < R; ++r) folded[r] *= out.factor * out.global[at + r];
    }
    if (rows == R) {
      for (int r = 0; r < R; ++r) y[m][at + r] = folded[r];
    } else {
      for (int r = 0; r < rows; ++r) y[m][at + r] = folded[r];
    }
  }
}

// The part of K after the last whole group; only dense weights have one.
template <class V, int R, int M, class Source>
inline void multiply_tail(const Source&, int, const float* const*, V (*)[R]) {}

template <class V, int R, int M, DenseType T>
inline void multiply_tail(const DenseSource<V, T>& w, int row, const float* const* x, V (*sums)[R]) {
  const int rest = static_cast<int>(w.k % kLanes);
  if (rest == 0) return;
  const int64_t start = w.groups * kLanes;
  for (int r = 0; r < R; ++r) {
    const V value = V::template load_first<T>(w.data, w.row_start(row + r) + start, rest);
    for (int m = 0; m < M; ++m) {
      sums[m][r] = V::fma(value, V::template load_first<DenseType::kF32>(x[m], start, rest), sums[m][r]);
    }
  }
}

// ---- few activation rows

template <class V, int M, class Source>
void direct_rows(const Source& w, const Output& out, const float* const* x, float* const* y) {
  constexpr int R = V::direct_rows(M);
  for (int row = 0; row < kTileRows && out.n0 + row < out.n; row += R) {
    V sums[M][R];
    for (int m = 0; m < M; ++m)
      for (int r = 0; r < R; ++r) sums[m][r] = V::zero();
    multiply<V, R, M>(w, row, 0, w.groups / Source::kGroups, x, sums);
    multiply_tail<V, R, M>(w, row, x, sums);
    finish<V, R, M>(out, row, sums, y);
  }
}

// The same for m <= kDirectX activation rows.
template <class V, class Source, int M = V::kDirectX>
void direct(const Source& w, const Output& out, const float* const* x, float* const* y, int m) {
  if constexpr (M > 1) {
    if (m < M) return direct<V, Source, M - 1>(w, out, x, y, m);
  }
  direct_rows<V, M>(w, out, x, y);
}

// ---- many activation rows

constexpr int64_t kPanelGroups = 64;  // 1024 k

template <class V>
struct Panel {
  static constexpr int R = V::kTileW;
  alignas(64) float weights[R * kPanelGroups * kLanes];
  alignas(64) float sums[kMaxRows][R][kLanes];
};

template <class V, class Source>
inline void fill_panel(const Source& w, int row, int64_t first, int64_t last, Panel<V>& panel) {
  constexpr int R = V::kTileW, G = Source::kGroups;
  for (int64_t unit = first; unit < last; ++unit) {
    V values[R][G];
    w.template load<R>(unit, row, values);
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < G; ++g) values[r][g].store(panel.weights + (r * kPanelGroups + (unit - first) * G + g) * kLanes);
  }
}

// One block of M activation rows over the panel; `last` folds and writes the outputs.
template <class V, int M, class Source>
inline void panel_block(const Source& w, const Output& out, int row, int64_t group, int64_t groups, int m0,
                        const Activations& a, Panel<V>& panel) {
  constexpr int R = V::kTileW;
  const float* x[M];
  V sums[M][R];
  for (int m = 0; m < M; ++m) {
    x[m] = a.x[m0 + m] + group * kLanes;
    for (int r = 0; r < R; ++r) sums[m][r] = group ? V::load(panel.sums[m0 + m][r]) : V::zero();
  }
  multiply<V, R, M>(PanelSource<V>{panel.weights, kPanelGroups * kLanes}, 0, 0, groups, x, sums);
  if (group + groups == w.groups) {
    multiply_tail<V, R, M>(w, row, a.x + m0, sums);
    finish<V, R, M>(out, row, sums, a.y + m0);
    return;
  }
  for (int m = 0; m < M; ++m)
    for (int r = 0; r < R; ++r) sums[m][r].store(panel.sums[m0 + m][r]);
}

// The same for m <= kBlockX activation rows.
template <class V, class Source, int M = V::kBlockX>
inline void panel_rows(const Source& w, const Output& out, int row, int64_t group, int64_t groups, int m0, int m,
                       const Activations& a, Panel<V>& panel) {
  if constexpr (M > 1) {
    if (m < M) return panel_rows<V, Source, M - 1>(w, out, row, group, groups, m0, m, a, panel);
  }
  panel_block<V, M>(w, out, row, group, groups, m0, a, panel);
}

template <class V, class Source>
void tiled(const Source& w, const Output& out, const Activations& a, int blocks, Panel<V>& panel) {
  constexpr int G = Source::kGroups;
  for (int row = 0; row < kTileRows && out.n0 + row < out.n; row += V::kTileW) {
    int64_t group = 0;
    do {
      const int64_t left = w.groups - group, groups = left < kPanelGroups ? left : kPanelGroups;
      fill_panel<V>(w, row, group / G, (group + groups) / G, panel);
      for (int b = 0; b < blocks; ++b) {
        const int m0 = a.count * b / blocks, m1 = a.count * (b + 1) / blocks;
        panel_rows<V>(w, out, row, group, groups, m0, m1 - m0, a, panel);
      }
      group += groups;
    } while (group < w.groups);
  }
}

// ---- entry points

template <class V, class Source, class Weight>
void run(const Weight& w, const float* global, float factor, const Activations& a, int64_t first, int64_t last) {
  if (a.count == 0) return;
  // Of nearly equal size.
  const int blocks = a.count <= V::kDirectX ? 1 : (a.count + V::kBlockX - 1) / V::kBlockX;
  Panel<V> panel;
  for (int64_t tile = first; tile < last; ++tile) {
    const Source source(w, tile);
    const Output out{tile * kTileRows, w.n, global, factor};
    if (blocks > Source::kDirectBlocks) {
      tiled<V>(source, out, a, blocks, panel);
      continue;
    }
    for (int b = 0; b < blocks; ++b) {
      const int m0 = a.count * b / blocks, m1 = a.count * (b + 1) / blocks;
      direct<V>(source, out, a.x + m0, a.y + m0, m1 - m0);
    }
  }
}

template <class V>
void run_nvfp4(const Nvfp4Weight& w, const Activations& a, int64_t first, int64_t last) {
  run<V, Nvfp4Source<V>>(w, w.global, 1.0f, a, first, last);
}

template <class V>
void run_fp8(const Fp8Weight& w, const Activations& a, int64_t first, int64_t last) {
  if (w.blocks) return run<V, Fp8Source<V, true>>(w, nullptr, 1.0f, a, first, last);
  run<V, Fp8Source<V, false>>(w, w.rows, kE4M3Unit, a, first, last);
}

template <class V>
void run_int4(const Int4Weight& w, const Activations& a, int64_t first, int64_t last) {
  switch (w.type) {
    case DenseType::kF32: return run<V, Int4Source<V, DenseType::kF32>>(w, nullptr, 1.0f, a, first, last);
    case DenseType::kF16: return run<V, Int4Source<V, DenseType::kF16>>(w, nullptr, 1.0f, a, first, last);
    case DenseType::kBF16: return run<V, Int4Source<V, DenseType::kBF16>>(w, nullptr, 1.0f, a, first, last);
  }
}

template <class V>
void run_dense(const DenseWeight& w, const Activations& a, int64_t first, int64_t last) {
  switch (w.type) {
    case DenseType::kF32: return run<V, DenseSource<V, DenseType::kF32>>(w, nullptr, 1.0f, a, first, last);
    case DenseType::kF16: return run<V, DenseSource<V, DenseType::kF16>>(w, nullptr, 1.0f, a, first, last);
    case DenseType::kBF16: return run<V, DenseSource<V, DenseType::kBF16>>(w, nullptr, 1.0f, a, first, last);
  }
}

}  // namespace
}  // namespace onecat::linear
