// Texts that records refer to by id: names of ops and parameters, and shapes.
//
// Ids count up from 1, so a single number says which names the collector has
// not received. The table only grows and lives as long as the process: ids stay
// valid across reprise_stop and reprise_start. A forked child starts with an
// empty table of its own.
//
//   one mapping, whose pages are touched as it fills:
//   | hash table of ids | offset and length per id | texts |
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/lock.h"

namespace reprise::profiler {

constexpr uint32_t kMaxNames = 1u << 16;
constexpr uint32_t kNameTableBytes = 8u << 20;  // of text
constexpr uint32_t kMaxNameBytes = 4096;        // longer ones are truncated

struct NameText {
  uint32_t offset, bytes;
};

struct Names {
  Lock lock;
  uint32_t count;  // atomic; everything of ids <= count is immutable
  uint32_t text_bytes;
  uint32_t *buckets;
  NameText *texts;  // by id - 1
  char *text;
};

// Returns the id of a text, always the same for the same text; 0 if the table
// is full.
uint32_t Intern(Names *names, const char *utf8, size_t n);

// Returns whether `id` is the id of `text`.
bool IsText(const Names *names, uint32_t id, const char *text);

inline uint32_t NameCount(const Names *names) {
  return __atomic_load_n(&names->count, __ATOMIC_ACQUIRE);
}

// Packs {u32 id, u32 n, n bytes, padded to 4} for the ids after `after` into
// `body`, as far as they fit. Returns the bytes used; `*last` is the last id
// packed.
size_t PackNames(const Names *names, uint32_t after, uint8_t *body,
                 size_t capacity, uint32_t *last);

}  // namespace reprise::profiler
