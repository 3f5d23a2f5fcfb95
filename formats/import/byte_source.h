// SPDX-License-Identifier: Apache-2.0
//
// A file as a stream of bytes, read in blocks of 64 KiB, because imported files
// may be larger than memory. A gzipped file is unpacked while it is read.
// Positions count unpacked bytes.
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

struct gzFile_s;  // of zlib

namespace reprise::formats {

class ByteSource {
 public:
  // NOT_FOUND; FAILED_PRECONDITION: a folder, or unreadable.
  static StatusOr<ByteSource> OpenFile(const std::string& path);
  // Reads from memory, which must outlive the source.
  static ByteSource Over(std::string_view bytes);

  ByteSource(ByteSource&&) = default;
  ByteSource& operator=(ByteSource&&) = default;

  // Sets a function that is called after every block with the number of file
  // bytes (packed, if the file is) read so far. If it returns an error, the
  // source ends with that status.
  void Watch(std::function<Status(uint64_t file_bytes)> watch) {
    watch_ = std::move(watch);
  }

  // Returns the next byte, or -1 at the end or after an error.
  int Next() {
    if (at_ == end_ && !Fill()) return -1;
    return static_cast<unsigned char>(*at_++);
  }
  // Reads `size` bytes. Returns false if fewer are left.
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

  // Bytes returned so far.
  uint64_t position() const {
    return filled_ - static_cast<uint64_t>(end_ - at_);
  }
  // OK after the end of the file, otherwise the error that ended the source.
  const Status& status() const { return status_; }

 private:
  ByteSource() = default;
  bool Fill();

  std::shared_ptr<gzFile_s> file_;  // null: over bytes
  std::vector<char> block_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  uint64_t filled_ = 0;
  Status status_;
  std::function<Status(uint64_t)> watch_;
};

}  // namespace reprise::formats
