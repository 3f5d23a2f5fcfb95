#include "profiler/names.h"

#include <string.h>
#include <sys/mman.h>

namespace reprise::profiler {
namespace {

constexpr uint32_t kBuckets = kMaxNames * 2;
constexpr size_t kBucketBytes = sizeof(uint32_t) * kBuckets;
constexpr size_t kTextIndexBytes = sizeof(NameText) * kMaxNames;

bool Prepare(Names *names) {
  if (names->buckets != nullptr) return true;
  constexpr size_t kBytes = kBucketBytes + kTextIndexBytes + kNameTableBytes;
  void *memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  madvise(memory, kBytes, MADV_DONTFORK);
  uint8_t *base = static_cast<uint8_t *>(memory);
  names->texts = reinterpret_cast<NameText *>(base + kBucketBytes);
  names->text = reinterpret_cast<char *>(base + kBucketBytes + kTextIndexBytes);
  names->buckets = reinterpret_cast<uint32_t *>(base);
  return true;
}

// Returns the length to which a text is truncated, without splitting a UTF-8
// sequence.
size_t Cut(const char *utf8, size_t n) {
  if (n <= kMaxNameBytes) return n;
  n = kMaxNameBytes;
  while (n > 0 && (static_cast<uint8_t>(utf8[n]) & 0xc0) == 0x80) --n;
  return n;
}

}  // namespace

uint32_t Intern(Names *names, const char *utf8, size_t n) {
  if (utf8 == nullptr) return 0;
  n = Cut(utf8, n);
  uint32_t bucket = static_cast<uint32_t>(Fnv1a64(utf8, n)) % kBuckets;

  Locked guard(&names->lock);
  if (!Prepare(names)) return 0;
  for (; names->buckets[bucket] != 0; bucket = (bucket + 1) % kBuckets) {
    const uint32_t id = names->buckets[bucket];
    const NameText &known = names->texts[id - 1];
    if (known.bytes == n && memcmp(names->text + known.offset, utf8, n) == 0)
      return id;
  }
  if (names->count == kMaxNames || names->text_bytes + n > kNameTableBytes)
    return 0;
  names->texts[names->count] = {names->text_bytes, static_cast<uint32_t>(n)};
  memcpy(names->text + names->text_bytes, utf8, n);
  names->text_bytes += static_cast<uint32_t>(n);
  const uint32_t id = names->count + 1;
  names->buckets[bucket] = id;
  __atomic_store_n(&names->count, id, __ATOMIC_RELEASE);
  return id;
}

bool IsText(const Names *names, uint32_t id, const char *text) {
  if (id == 0 || id > NameCount(names)) return false;
  const NameText &known = names->texts[id - 1];
  return strncmp(text, names->text + known.offset, known.bytes) == 0 &&
         (text[known.bytes] == 0 || known.bytes > kMaxNameBytes - 4);
}

size_t PackNames(const Names *names, uint32_t after, uint8_t *body,
                 size_t capacity, uint32_t *last) {
  const uint32_t count = NameCount(names);
  size_t used = 0;
  *last = after;
  for (uint32_t id = after + 1; id <= count; ++id) {
    const NameText &known = names->texts[id - 1];
    const size_t padded = (known.bytes + 3u) & ~size_t{3};
    if (used + 8 + padded > capacity) break;
    memcpy(body + used, &id, 4);
    memcpy(body + used + 4, &known.bytes, 4);
    memset(body + used + 8, 0, padded);
    memcpy(body + used + 8, names->text + known.offset, known.bytes);
    used += 8 + padded;
    *last = id;
  }
  return used;
}

}  // namespace reprise::profiler
