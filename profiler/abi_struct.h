// Structs that cross the C ABI carry their own size: a caller built against an
// older header passes fewer bytes, one built against a newer header more. The
// agent reads and writes only the fields that both sides know.
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define REPRISE_EXPORT __attribute__((visibility("default")))

namespace reprise::profiler {

// Copies a caller's struct; fields it lacks become zero. Returns false if the
// pointer is null or `struct_size` is too small to be valid.
template <typename T>
bool ReadStruct(const T *from, T *to) {
  memset(to, 0, sizeof *to);
  if (from == nullptr || from->struct_size < 2 * sizeof(uint32_t)) return false;
  memcpy(to, from,
         from->struct_size < sizeof *to ? from->struct_size : sizeof *to);
  return true;
}

// Copies `from` to a caller's struct, as far as its struct_size allows, and
// keeps that struct_size. Its last field is a sentence, `why`, which is cut and
// terminated where the caller's is shorter. Returns false as ReadStruct does.
template <typename T>
bool WriteStruct(const T &from, T *to) {
  if (to == nullptr || to->struct_size < 2 * sizeof(uint32_t)) return false;
  const uint32_t size = to->struct_size;
  memcpy(to, &from, size < sizeof *to ? size : sizeof *to);
  to->struct_size = size;
  if (size < sizeof *to && size > offsetof(T, why))
    reinterpret_cast<char *>(to)[size - 1] = 0;
  return true;
}

// Restores errno on return: training code reads it after its own calls.
class KeepErrno {
 public:
  ~KeepErrno() { errno = saved_; }

 private:
  int saved_ = errno;
};

}  // namespace reprise::profiler
