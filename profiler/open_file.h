// A descriptor that a forked child closes.
//
// All-zero bytes mean "none", so that a wiped page holds no stale descriptor.
// The numbers are also kept in ordinary memory for the fork handler: otherwise
// a DataLoader worker would hold the control socket open, and the collector
// would never see the trainer's EOF.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler {

struct OpenFile {
  int plus_one;

  int fd() const { return plus_one - 1; }
  bool open() const { return plus_one != 0; }

  // Takes ownership of `fd` (>= 0), after closing the one held before.
  void Hold(int fd);
  void Close();
};

// Closes every descriptor that the parent held. Call in a forked child only.
void CloseInheritedFiles();

// Bulk content (graphs, plans, snapshots) in memfds with all four seals.
//
// A memfd with all four seals can neither change nor shrink, so the receiver
// may map it and rely on its size.

// Returns an empty memfd that can be sealed, or -1 with errno.
int CreateMemfd(const char *name);

// Returns a sealed memfd with a copy of `n` bytes, or -1 with errno.
int CreateSealedCopy(const char *name, const void *bytes, size_t n);

// Checks that `fd` has all four seals and exactly the announced size, which
// must be in (0, max_bytes]. Returns null, or what is wrong.
const char *CheckSealed(int fd, uint64_t announced_bytes, uint64_t max_bytes);

// Maps a checked memfd for reading; null on failure. The mapping is private
// because older kernels refuse a shared one of a write-sealed memfd.
void *MapSealed(int fd, size_t bytes);

}  // namespace reprise::profiler
