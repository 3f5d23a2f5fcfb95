
#include "profiler/open_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

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

constexpr int kAllSeals =
    F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

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

int CreateMemfd(const char *name) {
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  // Hardened kernels (vm.memfd_noexec = 2) require the flag, old ones refuse
  // it.
  if (fd < 0 && errno == EACCES)
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  return fd;
}

int CreateSealedCopy(const char *name, const void *bytes, size_t n) {
  const int fd = CreateMemfd(name);
  if (fd < 0) return -1;
  // write(), not a mapping: a writable shared mapping makes the seal fail.
  const char *next = static_cast<const char *>(bytes);
  size_t left = n;
  while (left > 0) {
    const ssize_t written = write(fd, next, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    next += written;
    left -= static_cast<size_t>(written);
  }
  if (left == 0 && fcntl(fd, F_ADD_SEALS, kAllSeals) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

const char *CheckSealed(int fd, uint64_t announced_bytes, uint64_t max_bytes) {
  if (announced_bytes == 0) return "is announced as empty";
  if (announced_bytes > max_bytes) return "is larger than allowed";
  // Seals before size: without them the size could still change.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return "is not in a memfd";
  if ((seals & kAllSeals) != kAllSeals) return "is not sealed";
  struct stat facts;
  if (fstat(fd, &facts) != 0 ||
      static_cast<uint64_t>(facts.st_size) != announced_bytes)
    return "does not have the announced size";
  return nullptr;
}

void *MapSealed(int fd, size_t bytes) {
  void *memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace reprise::profiler
