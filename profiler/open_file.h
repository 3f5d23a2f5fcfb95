// A descriptor that a forked child closes.
//
// All-zero bytes mean "none", so that a wiped page holds no stale descriptor.
// The numbers are also kept in ordinary memory for the fork handler: otherwise
// a DataLoader worker would hold the control socket open, and the collector
// would never see the trainer's EOF.
#pragma once

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

}  // namespace reprise::profiler
