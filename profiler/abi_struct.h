// Structs that cross the C ABI carry their own size: a caller built against an
// older header passes fewer bytes, one built against a newer header more. The
// agent reads and writes no more than both know.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define REPRISE_EXPORT __attribute__((visibility("default")))

namespace reprise::profiler {

// False for a null pointer or a size that cannot be one.
template <typename T>
bool ReadStruct(const T *from, T *to) {
  memset(to, 0, sizeof *to);
  if (from == nullptr || from->struct_size < 2 * sizeof(uint32_t)) return false;
  memcpy(to, from,
         from->struct_size < sizeof *to ? from->struct_size : sizeof *to);
  return true;
}

// Keeps the caller's struct_size.
template <typename T>
bool WriteStruct(const T &from, T *to) {
  if (to == nullptr || to->struct_size < 2 * sizeof(uint32_t)) return false;
  const uint32_t size = to->struct_size;
  memcpy(to, &from, size < sizeof *to ? size : sizeof *to);
  to->struct_size = size;
  return true;
}

}  // namespace reprise::profiler
