// Makes text from outside safe to print: one line, no partial UTF-8 sequence,
// always terminated.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler {

inline void CopySentence(const void *bytes, size_t n, char *text,
                         size_t capacity) {
  const uint8_t *from = static_cast<const uint8_t *>(bytes);
  size_t length = n < capacity ? n : capacity - 1;
  if (length < n)
    while (length > 0 && (from[length] & 0xc0) == 0x80) --length;
  size_t used = 0;
  for (size_t i = 0; i < length && from[i] != 0; ++i)
    text[used++] =
        from[i] < 0x20 || from[i] == 0x7f ? ' ' : static_cast<char>(from[i]);
  text[used] = 0;
}

}  // namespace reprise::profiler
