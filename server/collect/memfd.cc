// SPDX-License-Identifier: Apache-2.0
#include "server/collect/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"

namespace reprise::server {

namespace {

constexpr int kRingSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kBulkSeals = kRingSeals | F_SEAL_WRITE;
// From linux/magic.h. Huge-page memfds are rejected: touching one can fail with
// SIGBUS when the machine has no huge page left.
constexpr long kTmpfsMagic = 0x01021994;

// Returns the memfd's status after checking its seals.
StatusOr<struct stat> CheckSealed(const Fd& fd, int wanted,
                                  std::string_view what) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) {
    return InvalidArgument(StrCat(what, ": is not a sealable memfd"));
  }
  if ((seals & wanted) != wanted) {
    return InvalidArgument(StrCat(what, ": lacks seals, has ", seals,
                                  " and needs ", wanted,
                                  "; seal it before sending"));
  }
  struct statfs filesystem {};
  if (fstatfs(fd.get(), &filesystem) != 0 || filesystem.f_type != kTmpfsMagic) {
    return InvalidArgument(StrCat(what, ": is not an ordinary memfd"));
  }
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) {
    return InvalidArgument(StrCat(what, ": ", strerror(errno)));
  }
  return status;
}

StatusOr<Mapping> Map(const Fd& fd, size_t bytes, int protection, int flags,
                      std::string_view what) {
  void* data = mmap(nullptr, bytes, protection, flags, fd.get(), 0);
  if (data == MAP_FAILED) {
    return ResourceExhausted(
        StrCat(what, ": cannot be mapped: ", strerror(errno)));
  }
  return Mapping(data, bytes);
}

}  // namespace

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

StatusOr<MappedRing> MapRing(const Fd& fd, uint32_t slots) {
  const bool power_of_two = (slots & (slots - 1)) == 0;
  if (!power_of_two || slots < REPRISE_RING_MIN_SLOTS ||
      slots > REPRISE_RING_MAX_SLOTS) {
    return InvalidArgument(StrCat("ring: slots must be a power of two from ",
                                  REPRISE_RING_MIN_SLOTS, " to ",
                                  REPRISE_RING_MAX_SLOTS, ", got ", slots));
  }
  ASSIGN_OR_RETURN(const struct stat status,
                   CheckSealed(fd, kRingSeals, "ring"));
  const int64_t bytes =
      REPRISE_RING_HEADER_BYTES + int64_t{slots} * REPRISE_SLOT_BYTES;
  if (status.st_size != bytes) {
    return InvalidArgument(StrCat("ring: ", slots, " slots need ", bytes,
                                  " bytes, the memfd has ", status.st_size));
  }
  MappedRing ring;
  ring.identity = {.device = status.st_dev, .inode = status.st_ino};
  ASSIGN_OR_RETURN(ring.mapping,
                   Map(fd, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                       MAP_SHARED, "ring"));
  return ring;
}

StatusOr<Mapping> MapSealed(const Fd& fd, uint64_t announced, uint64_t cap,
                            std::string_view what) {
  ASSIGN_OR_RETURN(const struct stat status, CheckSealed(fd, kBulkSeals, what));
  if (announced == 0 || announced > cap) {
    return InvalidArgument(StrCat(what, ": announced ", announced,
                                  " bytes; 1 to ", cap, " are allowed"));
  }
  if (status.st_size < 0 ||
      static_cast<uint64_t>(status.st_size) != announced) {
    return InvalidArgument(StrCat(what, ": announced ", announced,
                                  " bytes, the memfd has ", status.st_size));
  }
  return Map(fd, announced, PROT_READ, MAP_PRIVATE, what);
}

StatusOr<Fd> SealedMemfd(const char* name, std::string_view content) {
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return ResourceExhausted(StrCat(name, ": memfd: ", strerror(errno)));
  }
  while (!content.empty()) {
    const ssize_t n = write(fd.get(), content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return ResourceExhausted(StrCat(name, ": memfd: ", strerror(errno)));
    }
    content.remove_prefix(static_cast<size_t>(n));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kBulkSeals) != 0) {
    return Internal(StrCat(name, ": cannot seal: ", strerror(errno)));
  }
  return fd;
}

}  // namespace reprise::server
