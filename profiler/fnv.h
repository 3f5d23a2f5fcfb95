// FNV-1a, 64 bits: the id of a graph and the hash of a name.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler {

constexpr uint64_t kFnvStart = 0xcbf29ce484222325u;

inline uint64_t Fnv1a64(const void *bytes, size_t n,
                        uint64_t hash = kFnvStart) {
  const uint8_t *next = static_cast<const uint8_t *>(bytes);
  for (size_t i = 0; i < n; ++i) hash = (hash ^ next[i]) * 0x100000001b3u;
  return hash;
}

}  // namespace reprise::profiler
