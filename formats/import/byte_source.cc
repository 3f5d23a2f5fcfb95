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

class ByteSource::Input {
 public:
  explicit Input(int fd) : file_(gzdopen(fd, "rb")) {
    if (file_ != nullptr) gzbuffer(file_, kBlockBytes);
  }
  ~Input() {
    if (file_ != nullptr) gzclose_r(file_);
  }
  // Like read(2), with the text of an error in `why`.
  int Read(char* out, size_t size, std::string& why) {
    if (file_ == nullptr) {
      why = "cannot be read";
      return -1;
    }
    const int got = gzread(file_, out, static_cast<unsigned>(size));
    int code = Z_OK;
    const char* text = gzerror(file_, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END && got == 0)) {
      why = code == Z_ERRNO ? std::strerror(errno) : text;
      if (why.rfind("<fd:", 0) == 0) why.erase(0, why.find(": ") + 2);
      return -1;
    }
    return got;
  }
  uint64_t FileBytes() const {
    const auto at = gzoffset(file_);
    return at < 0 ? 0 : static_cast<uint64_t>(at);
  }

 private:
  gzFile file_;
};

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
  source.input_ = std::make_shared<Input>(fd);
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
  if (!input_ || !status_.ok()) return false;
  std::string why;
  const int got = input_->Read(block_.data(), block_.size(), why);
  if (got < 0) {
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
    status_ = watch_(input_->FileBytes());
    if (!status_.ok()) return false;
  }
  at_ = block_.data();
  end_ = at_ + got;
  filled_ += static_cast<uint64_t>(got);
  return got > 0;
}

}  // namespace reprise::formats
