// SPDX-License-Identifier: Apache-2.0
//
// File descriptors, mappings and memfds that come from an agent or go to one.
//
// Reading a memfd of another process is dangerous: whoever can shrink it kills
// the reader with SIGBUS, and whoever can write to it changes what was just
// checked. So the seals are checked before the content, and the size is the one
// that the kernel reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "base/status.h"

namespace reprise::server {

// Owns a memory mapping.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* data, size_t size) : data_(data), size_(size) {}
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping();

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  size_t size() const { return size_; }
  std::string_view text() const {
    return {static_cast<const char*>(data_), size_};
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Identifies a ring's memfd, to recognise it when its agent reconnects.
struct MemfdIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  friend bool operator==(const MemfdIdentity&, const MemfdIdentity&) = default;
};

struct MappedRing {
  Mapping mapping;
  MemfdIdentity identity;
};

// Maps a ring of `slots` slots, shared and writable. INVALID_ARGUMENT: it is
// not a memfd, not sealed against shrinking, growing and further seals, or its
// size does not match `slots`.
StatusOr<MappedRing> MapRing(const Fd& fd, uint32_t slots);

// Maps `announced` bytes of bulk content, private and read-only.
// INVALID_ARGUMENT: a seal is missing, the sizes differ, or the size is 0 or
// above `cap`. `what` names the content in the message.
StatusOr<Mapping> MapSealed(const Fd& fd, uint64_t announced, uint64_t cap,
                            std::string_view what);

// Returns a memfd with the content and all four seals, for an agent.
StatusOr<Fd> SealedMemfd(const char* name, std::string_view content);

}  // namespace reprise::server
