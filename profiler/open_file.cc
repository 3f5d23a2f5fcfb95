#include "profiler/open_file.h"

#include <unistd.h>

namespace reprise::profiler {
namespace {

// More than a session holds: socket, ring, sink, snapshot and two per graph.
constexpr int kHeld = 64;
int g_held[kHeld];  // fd + 1

void Remember(int plus_one) {
  for (int &cell : g_held) {
    int none = 0;
    if (__atomic_compare_exchange_n(&cell, &none, plus_one, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return;
  }
}

void Forget(int plus_one) {
  for (int &cell : g_held) {
    int held = plus_one;
    if (__atomic_compare_exchange_n(&cell, &held, 0, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
      return;
  }
}

}  // namespace

void OpenFile::Hold(int fd) {
  Close();
  plus_one = fd + 1;
  Remember(plus_one);
}

void OpenFile::Close() {
  if (plus_one == 0) return;
  // Forget first: if a fork happens in between, the child must not close a
  // number that has been reused.
  Forget(plus_one);
  close(fd());
  plus_one = 0;
}

void CloseInheritedFiles() {
  for (int &cell : g_held) {
    if (cell != 0) close(cell - 1);
    cell = 0;
  }
}

}  // namespace reprise::profiler
