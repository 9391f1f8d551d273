// What the launching side and the kernels share. Included by both compilers: built-in types only.
#pragma once

namespace onecat::paged_attention {

// Attention of new rows. A row of one kv head is t * G + g. Prefill has one split and no partial results.
struct AttendArgs {
  const void* q;                    // [B, T, H, D] float16
  const unsigned char *k, *v;       // [X, S, J, D]
  const int *table, *start, *count; // [B, P], [B], [B]
  const int* first_page;
  float* partial;                   // [B, J, splits, rows, D] weighted values, not divided by their sum
  float* sums;                      // [B, J, splits, rows, 2] largest logit, in powers of two, and sum of weights
  float* out;                       // [B, T, H, D]
  int batch, tokens, group, kv_heads;
  int page_size, table_pages, pages;
  int splits, run, rows;            // run: splits that one block takes, one after the other
  int window, causal;
  float scale;                      // includes log2 e
};

constexpr int kMaxTokens = 16;
constexpr int kMaxQueryHeads = 12;  // query heads per kv head
constexpr int kMaxSplits = 160;
constexpr int kAttendThreads = 256;
constexpr int kPrefillRows = 128;  // of a block on m16n8k16: tokens of one query head

// m16n8k16 copies tiles of float16 this many ahead, of float8 twice as many: as many as shared memory holds.
constexpr int kAheadSm80 = 1, kAheadSm90 = 2;

}  // namespace onecat::paged_attention
