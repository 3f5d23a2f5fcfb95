// SPDX-License-Identifier: Apache-2.0
//
// A file as a stream of bytes, read in blocks of 64 KiB: what is imported may
// be larger than memory. A gzipped file is unpacked on the way where zlib was
// there when this was built. Positions count unpacked bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace reprise::formats {

class ByteSource {
 public:
  // NOT_FOUND, or FAILED_PRECONDITION: a folder, unreadable, or gzipped where
  // that cannot be unpacked.
  static StatusOr<ByteSource> OpenFile(const std::string& path);
  // Over bytes that outlive it.
  static ByteSource Over(std::string_view bytes);

  ByteSource(ByteSource&&) = default;
  ByteSource& operator=(ByteSource&&) = default;

  // Called with every block, with how much of the file (as it lies there,
  // packed) was read by then; what is not OK ends the source with that status.
  void Watch(std::function<Status(uint64_t file_bytes)> watch) {
    watch_ = std::move(watch);
  }

  // The next byte, or -1 at the end or after an error.
  int Next() {
    if (at_ == end_ && !Fill()) return -1;
    return static_cast<unsigned char>(*at_++);
  }
  // False when fewer than `size` bytes are left.
  bool Read(char* out, size_t size) {
    while (size > 0) {
      if (at_ == end_ && !Fill()) return false;
      const size_t some = std::min(size, static_cast<size_t>(end_ - at_));
      std::memcpy(out, at_, some);
      at_ += some;
      out += some;
      size -= some;
    }
    return true;
  }

  // Bytes given out so far.
  uint64_t position() const {
    return filled_ - static_cast<uint64_t>(end_ - at_);
  }
  // Why the end came: OK at the end of the file, else what went wrong.
  const Status& status() const { return status_; }

 private:
  class Input;
  struct DeleteInput {
    void operator()(Input* input) const;
  };

  ByteSource() = default;
  bool Fill();

  std::unique_ptr<Input, DeleteInput> input_;  // null: over bytes
  std::vector<char> block_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  uint64_t filled_ = 0;
  Status status_;
  std::function<Status(uint64_t)> watch_;
};

}  // namespace reprise::formats
