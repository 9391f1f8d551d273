// What the launching side and the kernel of key/value writing share. Included by both compilers: built-in types only.
#pragma once

namespace onecat::paged_attention {

enum Element { kElementF32, kElementF16, kElementBF16, kElementE4M3, kElementE5M2 };

// Where the tokens of a batch lie in a cache.
struct Places {
  void *k_pages, *v_pages;           // [X, S, J, D]
  const int *table, *start, *count;  // [B, P], [B], [B]
  const int* first_page;
  int batch, tokens;
  int page_size, table_pages, pages;
};

struct WriteArgs {
  Places at;
  const void *k, *v;  // [B, T, J, D]
  int values;         // J * D
  Element from, to;
};

// A row of qkv holds q heads, q_stride apart, then at k_at and v_at the key and value heads.
struct HeadArgs {
  Places at;
  const void* qkv;               // [B, T, N] float16
  const float *q_norm, *k_norm;  // [D], around 0
  const float *cos, *sin;        // [B, T, half]
  const float* scales;           // [2]: keys and values are divided by them, queries multiplied by the first
  void* q;                       // [B, T, H, D] float16
  int width, q_stride, k_at, v_at;
  int heads, kv_heads, half;
  float eps;
  Element to;
};

constexpr int kWriteThreads = 256;
constexpr int kWriteValues = 8;  // of one thread

}  // namespace onecat::paged_attention
