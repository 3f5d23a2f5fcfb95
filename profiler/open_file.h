// A descriptor that a forked child closes again.
//
// All-zero bytes are "none", so that a wiped page holds no stale number. The
// numbers are also kept in ordinary memory for the fork handler: without it a
// DataLoader worker would hold the control socket open and the collector would
// never see the trainer's EOF.
#pragma once

namespace reprise::profiler {

struct OpenFile {
  int plus_one;

  int fd() const { return plus_one - 1; }
  bool open() const { return plus_one != 0; }

  // Takes over `fd` (>= 0), closing what was held before.
  void Hold(int fd);
  void Close();
};

// In a forked child only: closes every descriptor the parent held.
void CloseInheritedFiles();

}  // namespace reprise::profiler
