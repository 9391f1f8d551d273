// What the launching side and the kernel of key/value writing share. Included by both compilers: built-in types only.
#pragma once

namespace onecat::paged_attention {

enum Element { kElementF32, kElementF16, kElementBF16, kElementE4M3, kElementE5M2 };

struct WriteArgs {
  const void *k, *v;                 // [B, T, J, D]
  void *k_pages, *v_pages;           // [X, S, J, D]
  const int *table, *start, *count;  // [B, P], [B], [B]
  const int* first_page;
  int batch, tokens, values;  // values: J * D
  int page_size, table_pages, pages;
  Element from, to;
};

constexpr int kWriteThreads = 256;
constexpr int kWriteValues = 8;  // of one thread

}  // namespace onecat::paged_attention
