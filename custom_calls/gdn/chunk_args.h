// What the launching side and the kernels of long inputs share. Included by both compilers: built-in types only.
#pragma once

namespace onecat::gdn {

// Chunks of 64 rows, counted from a request's first one. Operands of products are kept as sums of kTerms float16 numbers, all
// first terms of a tile before its second ones.
struct ChunkArgs {
  const void* rows;                     // [B, T, N] float16: q | k | v
  const float* gates;                   // [B, T, 2 * Hv] b | a
  const float *conv, *a_log, *dt_bias;  // [L, W, C], [L, Hv], [L, Hv]
  const int* layer;                     // scalar
  const int *slots, *start, *count;     // [B]
  float* states;                        // [X, Hv, Dv, Dk]
  void* windows;                        // [X, W - 1, C] float16
  float* out;                           // [B, T, Hv, Dv]
  void *keys, *queries;                 // [B, chunks, Hk, kTerms, 64, 128], unit rows
  void* values;                         // [B, chunks, Hv, 64, 128] float32, float16 of one term
  void *solved, *mixed;                 // [B, chunks, Hv, kTerms, 64, 64]: T and P
  float* decays;                        // [B, chunks, Hv, 3, 64]: from the start, to the end, beta
  int mul, add, layers;                 // layer number index * mul + add, of L
  int batch, tokens, width, chunks;     // B, T, N
  int key_heads, value_heads, channels;
  int all_slots;                        // X
};

constexpr int kChunk = 64;
constexpr int kChunkThreads = 256;
constexpr int kSolvedHeads = 3;  // value heads whose systems a block solves at a time

}  // namespace onecat::gdn
