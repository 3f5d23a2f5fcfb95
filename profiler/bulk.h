// Bulk content (graphs, plans, snapshots) in memfds with all four seals.
//
// Sealed, a memfd can neither change nor shrink under its reader, so the
// receiver may map it and trust its size for as long as it likes.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler {

// An empty memfd that can be sealed, or -1 with errno.
int CreateMemfd(const char *name);

// A sealed memfd holding a copy of `n` bytes, or -1 with errno.
int CreateSealedCopy(const char *name, const void *bytes, size_t n);

// nullptr when `fd` has all four seals and exactly the announced size, which
// is within (0, max]; else what is wrong with it.
const char *CheckSealed(int fd, uint64_t announced_bytes, uint64_t max_bytes);

// Maps a checked memfd for reading; nullptr on failure. Private, because older
// kernels refuse a shared mapping of a write-sealed memfd.
void *MapSealed(int fd, size_t bytes);

}  // namespace reprise::profiler
