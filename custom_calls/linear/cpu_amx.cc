// The kernels of cpu_amx.h. A tile of 16 weight rows and 32 k is the left operand of a matrix instruction, a tile of 16
// activation rows in one part the right one, so weights need no transposition.
#if defined(ONECAT_AMX)
#include "linear/cpu_amx.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

namespace onecat::linear {
namespace {

constexpr std::align_val_t kLine{64};
constexpr int kParts = 3;
constexpr int kGroupRows = 16;                 // activation rows of a group
constexpr int kColumns = 16;                   // of a tile, at most
constexpr int kPairs = kAmxUnitK / 2;          // rows of a right operand
constexpr int64_t kTileBytes = kAmxRows * 64;  // of a left operand
constexpr int64_t kChunk = 64;                 // units of decoded weights that are kept where several groups need them
constexpr int64_t kRing = 4;                   // and that are held where one does
constexpr int kGroups = kMaxRows / kGroupRows;

// How the columns of a group lie in tiles: all are full but the last one.
struct Columns {
  int width;  // columns of a part

  int count() const { return kParts * width; }
  int tiles() const { return (count() + kColumns - 1) / kColumns; }
  int in(int tile) const { return std::min(kColumns, count() - tile * kColumns); }
};

Columns columns_of(int rows) { return {rows <= 4 ? 4 : rows <= 8 ? 8 : kGroupRows}; }
int64_t groups_of(int rows) { return (rows + kGroupRows - 1) / kGroupRows; }

// The compiler doesn't know what the tile instructions read: what was written to memory for one of them must be there.
inline void written(const void* data) { __asm__ volatile("" ::"r"(data) : "memory"); }

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int columns) {
    rows[tile] = 16;
    row_bytes[tile] = static_cast<uint16_t>(columns * 4);
  }
};

// Tiles 0 .. 2 are the sums, 3 is the weight, 4 .. 6 are the activations.
void set_up_tiles(Columns columns) {
  TileConfig config;
  config.set(3, kColumns);
  for (int tile = 0; tile < columns.tiles(); ++tile) {
    config.set(tile, columns.in(tile));
    config.set(4 + tile, columns.in(tile));
  }
  written(&config);
  _tile_loadconfig(&config);
}

inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
}

// Four vectors of 16 to 16 groups of four: out[q], part i of four, is group 4 i + q.
inline void transpose(const __m512i* v, __m512i* out) {
  const __m512i ab = _mm512_unpacklo_epi32(v[0], v[1]), cd = _mm512_unpacklo_epi32(v[2], v[3]);
  const __m512i ab2 = _mm512_unpackhi_epi32(v[0], v[1]), cd2 = _mm512_unpackhi_epi32(v[2], v[3]);
  out[0] = _mm512_unpacklo_epi64(ab, cd);
  out[1] = _mm512_unpackhi_epi64(ab, cd);
  out[2] = _mm512_unpacklo_epi64(ab2, cd2);
  out[3] = _mm512_unpackhi_epi64(ab2, cd2);
}

// ---- activations

// The first part of 16 numbers in their upper halves; `rest` is what remains. An infinity has no rest.
inline __m512 first_part(__m512 x, __m512* rest) {
  const __m512 part = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(__builtin_inff()), _CMP_NEQ_UQ);
  *rest = _mm512_maskz_sub_ps(finite, x, part);
  return part;
}

// The upper halves of 32 numbers.
inline __m512i upper_halves(__m512 a, __m512 b) {
  alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                    33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(_mm512_castps_si512(a), _mm512_load_si512(kOdd), _mm512_castps_si512(b));
}

inline void split(const float* x, __m512i* first, __m512i* next, __m512i* last) {
  __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  __m512 part_a = first_part(a, &a), part_b = first_part(b, &b);
  *first = upper_halves(part_a, part_b);
  part_a = first_part(a, &a), part_b = first_part(b, &b);
  *next = upper_halves(part_a, part_b);
  *last = upper_halves(a, b);
}

// Four columns, from `column` on, of a unit's tiles.
inline void put_columns(const __m512i* v, Columns columns, int column, uint32_t* unit) {
  const int tile = column / kColumns, stride = columns.in(tile);
  uint32_t* to = unit + tile * kPairs * kColumns + column % kColumns;
  __m512i groups[4];
  transpose(v, groups);
  for (int q = 0; q < 4; ++q, to += stride) {
    _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(groups[q]));
    _mm_store_si128(reinterpret_cast<__m128i*>(to + 4 * stride), _mm512_extracti32x4_epi32(groups[q], 1));
    _mm_store_si128(reinterpret_cast<__m128i*>(to + 8 * stride), _mm512_extracti32x4_epi32(groups[q], 2));
    _mm_store_si128(reinterpret_cast<__m128i*>(to + 12 * stride), _mm512_extracti32x4_epi32(groups[q], 3));
  }
}

void pack(const Activations& rows, int64_t k, Columns columns, uint32_t* to) {
  for (int m0 = 0; m0 < rows.count; m0 += kGroupRows) {
    for (int64_t at = 0; at < k; at += kAmxUnitK, to += kPairs * columns.count()) {
      for (int m = 0; m < columns.width; m += 4) {
        __m512i parts[kParts][4] = {};
        for (int i = 0; i < 4 && m0 + m + i < rows.count; ++i) split(rows.x[m0 + m + i] + at, &parts[0][i], &parts[1][i], &parts[2][i]);
        for (int part = 0; part < kParts; ++part) put_columns(parts[part], columns, part * columns.width + m, to);
      }
    }
  }
}

int64_t pairs_of(int rows, int64_t k) { return groups_of(rows) * k / 2 * columns_of(rows).count(); }

uint32_t* room(int64_t needed, uint32_t* few, int64_t there) { return needed <= there ? few : new (kLine) uint32_t[needed]; }

// ---- weights: bring(unit) gets a tile ready, tile(unit) is where it lies, `stride` bytes from row to row.

// Decoded tiles of the last units.
struct Panel {
  uint8_t* tiles;  // [slots, 16, 64]
  int64_t slots;   // a power of two

  uint8_t* at(int64_t unit) const { return tiles + (unit & (slots - 1)) * kTileBytes; }
};

struct Bf16Products {
  alignas(64) std::array<uint16_t, 256 * kLanes> values;

  explicit Bf16Products(const float* products) {
    for (size_t i = 0; i < values.size(); ++i) {
      uint32_t bits;
      std::memcpy(&bits, products + i, sizeof bits);
      values[i] = static_cast<uint16_t>(bits >> 16);  // at most six bits of significand: exact
    }
  }
};

struct Nvfp4Tiles {
  static constexpr int64_t stride = 64;
  const uint8_t* codes;
  const uint8_t* scales;
  const uint16_t* products;
  int64_t units;
  const Panel& panel;

  Nvfp4Tiles(const Nvfp4Weight& w, int64_t block, const Panel& panel)
      : codes(w.codes + block * 2 * w.units * kTileRows * kLanes),
        scales(w.scales + block * 2 * w.units * kTileRows * 2),
        units(w.units),
        panel(panel) {
    static const Bf16Products table(w.products);
    products = table.values.data();
  }

  const uint8_t* tile(int64_t unit) const { return panel.at(unit); }

  void bring(int64_t unit) const {
    constexpr int64_t kAhead = 4096;
    for (int half = 0; half < 2; ++half) {
      const int64_t at = (half * units + unit) * kTileRows;
      const uint8_t* from = codes + at * kLanes;
      __builtin_prefetch(from + kAhead);
      __builtin_prefetch(from + kAhead + 64);
      alignas(32) uint16_t rows[kTileRows * 2];  // of the table: bytes from its start
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + at * 2));
      _mm256_store_si256(reinterpret_cast<__m256i*>(rows), _mm256_slli_epi16(_mm256_cvtepu8_epi16(bits), 5));
      for (int row = 0; row < kTileRows; row += 2)
        two_rows(from + row * kLanes, rows + row * 2, panel.at(unit) + (half * kTileRows + row) * 64);
    }
    written(panel.tiles);
  }

 private:
  __m512i looked_up(size_t first, size_t second, __m512i codes) const {
    const auto row = [this](size_t at) { return reinterpret_cast<const __m256i*>(reinterpret_cast<const char*>(products) + at); };
    const __m512i table = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256(row(first))), _mm256_load_si256(row(second)), 1);
    return _mm512_permutexvar_epi16(codes, table);
  }

  // Bit 4 of a lane's code picks the row's half of the table.
  void two_rows(const uint8_t* from, const uint16_t* rows, uint8_t* to) const {
    const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    const __m512i low = _mm512_ternarylogic_epi32(bytes, _mm512_set1_epi16(15), half, 0xea);  // (bytes & 15) | half
    const __m512i high = _mm512_or_si512(_mm512_srli_epi16(bytes, 4), half);
    const __m512i a = looked_up(rows[0], rows[2], low), b = looked_up(rows[1], rows[3], high);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(a));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + 32), _mm512_castsi512_si256(b));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + 64), _mm512_extracti64x4_epi64(a, 1));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + 96), _mm512_extracti64x4_epi64(b, 1));
  }
};

struct Bf16Tiles {
  int64_t stride;
  const uint8_t* data;
  int64_t units, left;  // rows from here to the weight's end
  const Panel& panel;

  Bf16Tiles(const DenseWeight& w, int64_t block, const Panel& panel)
      : stride(w.k * 2),
        data(static_cast<const uint8_t*>(w.data) + block * kAmxRows * stride),
        units(w.k / kAmxUnitK),
        left(w.n - block * kAmxRows),
        panel(panel) {
    if (left < kAmxRows) stride = 64;
  }

  const uint8_t* tile(int64_t unit) const {
    return left < kAmxRows ? panel.at(unit) : data + unit * 64;
  }

  void bring(int64_t unit) const {
    if (left < kAmxRows) return copy(unit);
    if (left < 2 * kAmxRows) return;
    for (int row = 0; row < kAmxRows; ++row) __builtin_prefetch(data + (kAmxRows + row) * stride + unit * 64);
  }

 private:
  void copy(int64_t unit) const {
    uint8_t* to = panel.at(unit);
    for (int row = 0; row < kAmxRows; ++row, to += 64) {
      if (row < left) {
        std::memcpy(to, data + row * units * 64 + unit * 64, 64);
      } else {
        std::memset(to, 0, 64);
      }
    }
    written(panel.tiles);
  }
};

// ---- products

struct alignas(64) Sums {
  float values[kParts][kAmxRows * kColumns];  // by tiles
};

// The same for the T tiles that the columns take.
template <int T>
struct Group {
  Columns columns;

  static inline void zero() {
    _tile_zero(0);
    if constexpr (T > 1) _tile_zero(1);
    if constexpr (T > 2) _tile_zero(2);
  }

  inline void load(const Sums& sums) const {
    _tile_loadd(0, sums.values[0], columns.in(0) * 4);
    if constexpr (T > 1) _tile_loadd(1, sums.values[1], columns.in(1) * 4);
    if constexpr (T > 2) _tile_loadd(2, sums.values[2], columns.in(2) * 4);
  }

  inline void store(Sums& sums) const {
    _tile_stored(0, sums.values[0], columns.in(0) * 4);
    if constexpr (T > 1) _tile_stored(1, sums.values[1], columns.in(1) * 4);
    if constexpr (T > 2) _tile_stored(2, sums.values[2], columns.in(2) * 4);
  }

  // Adds units first .. last - 1. `fresh`: their weights are needed for the first time.
  template <class Source>
  inline void multiply(const Source& w, const uint32_t* pairs, int64_t first, int64_t last, bool fresh) const {
    if (fresh) w.bring(first);
    for (int64_t unit = first; unit < last; ++unit) {
      if (fresh && unit + 1 < last) w.bring(unit + 1);  // early, so that its stores are over when the tile is loaded
      const uint32_t* x = pairs + unit * kPairs * columns.count();
      _tile_loadd(3, w.tile(unit), w.stride);
      _tile_loadd(4, x, columns.in(0) * 4);
      _tile_dpbf16ps(0, 3, 4);
      if constexpr (T > 1) {
        _tile_loadd(5, x + kPairs * kColumns, columns.in(1) * 4);
        _tile_dpbf16ps(1, 3, 5);
      }
      if constexpr (T > 2) {
        _tile_loadd(6, x + 2 * kPairs * kColumns, columns.in(2) * 4);
        _tile_dpbf16ps(2, 3, 6);
      }
    }
  }
};

// A part's sums for four activation rows: those of weight rows q, q + 4, q + 8, q + 12, side by side.
inline __m512 four_rows(const Sums& sums, Columns columns, int column, int q) {
  const int tile = column / kColumns, stride = columns.in(tile);
  const float* at = sums.values[tile] + q * stride + column % kColumns;
  __m512 rows = _mm512_castps128_ps512(_mm_loadu_ps(at));
  rows = _mm512_insertf32x4(rows, _mm_loadu_ps(at + 4 * stride), 1);
  rows = _mm512_insertf32x4(rows, _mm_loadu_ps(at + 8 * stride), 2);
  return _mm512_insertf32x4(rows, _mm_loadu_ps(at + 12 * stride), 3);
}

// The outputs of four activation rows, from m on inside their group: all weight rows of one, of the next ...
inline void add_parts(const Sums& sums, Columns columns, int m, __m512i* out) {
  __m512i v[4];
  for (int q = 0; q < 4; ++q) {
    const __m512 two = _mm512_add_ps(four_rows(sums, columns, m, q), four_rows(sums, columns, columns.width + m, q));
    v[q] = _mm512_castps_si512(_mm512_add_ps(two, four_rows(sums, columns, 2 * columns.width + m, q)));
  }
  transpose(v, out);
}

// Outputs n0 .. of rows m0 .. from the sums of their parts.
inline void finish(const Sums& sums, const AmxRows& x, int m0, int64_t n0, int64_t n, const float* global) {
  const __mmask16 kept = first_lanes(n - n0);
  const __m512 scale = global ? _mm512_maskz_loadu_ps(kept, global + n0) : _mm512_set1_ps(1.0f);
  const int rows = std::min(kGroupRows, x.rows.count - m0);
  for (int m = 0; m < rows; m += 4) {
    __m512i out[4];
    add_parts(sums, Columns{x.width}, m, out);
    for (int i = 0; i < 4 && m + i < rows; ++i)
      _mm512_mask_storeu_ps(x.rows.y[m0 + m + i] + n0, kept, _mm512_mul_ps(_mm512_castsi512_ps(out[i]), scale));
  }
}

template <int T, class Source, class Weight>
void run(const Weight& w, const float* global, const AmxRows& x, int64_t first_block, int64_t last_block) {
  alignas(64) uint8_t tiles[kChunk * kTileBytes];
  Sums sums[kGroups];
  const int64_t groups = groups_of(x.rows.count);
  const Panel panel{tiles, groups == 1 ? kRing : kChunk};
  const Group<T> group{Columns{x.width}};
  for (int64_t block = first_block; block < last_block; ++block) {
    const Source source(w, block, panel);
    for (int64_t first = 0; first < source.units; first += kChunk) {
      const int64_t last = std::min(source.units, first + kChunk);
      for (int64_t g = 0; g < groups; ++g) {
        if (first == 0) {
          group.zero();
        } else {
          group.load(sums[g]);
        }
        group.multiply(source, x.pairs + g * source.units * kPairs * group.columns.count(), first, last, g == 0);
        group.store(sums[g]);
        if (last == source.units) finish(sums[g], x, static_cast<int>(g) * kGroupRows, block * kAmxRows, w.n, global);
      }
    }
  }
}

template <class Source, class Weight>
void run(const Weight& w, const float* global, const AmxRows& x, int64_t first, int64_t last) {
  switch (Columns{x.width}.tiles()) {
    case 1: return run<1, Source>(w, global, x, first, last);
    case 2: return run<2, Source>(w, global, x, first, last);
    default: return run<3, Source>(w, global, x, first, last);
  }
}

}  // namespace

AmxRows::AmxRows(const Activations& rows, int64_t k)
    : rows(rows), width(columns_of(rows.count).width), pairs(room(pairs_of(rows.count, k), few_, kFew)) {
  pack(rows, k, Columns{width}, pairs);
  written(pairs);
  set_up_tiles(Columns{width});
}

AmxRows::~AmxRows() {
  _tile_release();
  if (pairs != few_) ::operator delete[](pairs, kLine);
}

void amx_nvfp4(const Nvfp4Weight& w, const AmxRows& x, int64_t first, int64_t last) {
  run<Nvfp4Tiles>(w, w.global, x, first, last);
}

void amx_bf16(const DenseWeight& w, const AmxRows& x, int64_t first, int64_t last) {
  run<Bf16Tiles>(w, nullptr, x, first, last);
}

}  // namespace onecat::linear
#endif
