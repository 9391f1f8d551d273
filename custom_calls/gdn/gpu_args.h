// What the launching side and the kernels of few rows share. Included by both compilers: built-in types only.
#pragma once

namespace onecat::gdn {

struct RowsArgs {
  const void* rows;                     // [B, T, N] float16: q | k | v, z behind them where gated; kept rows [P, B, T, C]
  const float* gates;                   // [B, T, 2 * Hv] b | a; kept ones [P, B, T, 2 * Hv]
  const float *conv, *a_log, *dt_bias;  // [L, W, C], [L, Hv], [L, Hv]
  const float* norm;                    // [L, Dv] of the gated norm, or null
  const int *layer, *place;             // scalars: index of the layer, and where its rows are kept
  const int *slots, *start, *count;     // [B]
  unsigned* arrivals;                   // [B, Hk], replay [L, B, Hk]: zero before and after
  float* states;                        // [X, Hv, Dv, Dk]
  void* windows;                        // [X, W - 1, C] float16
  void* out;                            // [B, T, Hv, Dv] float32, float16 where gated
  void* kept_rows;                      // [P, B, T, C] float16, or null
  float* kept_gates;                    // [P, B, T, 2 * Hv]
  float eps;
  int mul, add, layers;                 // layer number index * mul + add, of L
  int batch, tokens, width;             // B, T, N
  int key_heads, value_heads, channels;
  int places, first_place;              // P, and where a replay's first layer has its rows
  int layer_slots;                      // that `slots` may name: X, in a replay those of a layer
};

constexpr int kGpuTokens = 16;
constexpr int kGpuDim = 128;  // Dk and Dv
constexpr int kGpuTaps = 4;   // W
constexpr int kGpuThreads = 256;

}  // namespace onecat::gdn
