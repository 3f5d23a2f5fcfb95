// SPDX-License-Identifier: Apache-2.0
#include "formats/import/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>

#include "base/str_cat.h"

namespace reprise::formats {

namespace {

constexpr size_t kBlockBytes = 64 << 10;
// A packed file may claim any length: reading stops here.
constexpr uint64_t kMostUnpackedBytes = uint64_t{64} << 30;

}  // namespace

StatusOr<ByteSource> ByteSource::OpenFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT)
      return NotFound(StrCat(path, ": there is no such file"));
    return FailedPrecondition(
        StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  }
  struct stat about {};
  if (fstat(fd, &about) != 0 || S_ISDIR(about.st_mode)) {
    close(fd);
    return FailedPrecondition(StrCat(path, ": is a folder, not a file"));
  }
  ByteSource source;
  source.file_.reset(gzdopen(fd, "rb"), gzclose_r);
  if (source.file_ == nullptr) {
    close(fd);
    return FailedPrecondition(StrCat(path, ": cannot be read"));
  }
  gzbuffer(source.file_.get(), kBlockBytes);
  source.block_.resize(kBlockBytes);
  return source;
}

ByteSource ByteSource::Over(std::string_view bytes) {
  ByteSource source;
  source.at_ = bytes.data();
  source.end_ = bytes.data() + bytes.size();
  source.filled_ = bytes.size();
  return source;
}

bool ByteSource::Fill() {
  if (!file_ || !status_.ok()) return false;
  const int got = gzread(file_.get(), block_.data(), kBlockBytes);
  int code = Z_OK;
  const char* text = gzerror(file_.get(), &code);
  if (got < 0 || (code != Z_OK && code != Z_STREAM_END && got == 0)) {
    std::string why = code == Z_ERRNO ? std::strerror(errno) : text;
    if (why.starts_with("<fd:")) why.erase(0, why.find(": ") + 2);
    status_ = FailedPrecondition(
        StrCat("byte ", filled_, ": cannot be read on: ", why));
    return false;
  }
  if (filled_ + static_cast<uint64_t>(got) > kMostUnpackedBytes) {
    status_ = ResourceExhausted(
        StrCat("holds more than ", kMostUnpackedBytes >> 30, " GiB unpacked"));
    return false;
  }
  if (watch_) {
    const auto file_bytes = std::max<int64_t>(gzoffset(file_.get()), 0);
    status_ = watch_(static_cast<uint64_t>(file_bytes));
    if (!status_.ok()) return false;
  }
  at_ = block_.data();
  end_ = at_ + got;
  filled_ += static_cast<uint64_t>(got);
  return got > 0;
}

}  // namespace reprise::formats
