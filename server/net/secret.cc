// SPDX-License-Identifier: Apache-2.0
#include "server/net/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

constexpr size_t kRandomBytes = 32;
constexpr size_t kFewestChars = 16;
constexpr size_t kMostChars = 512;
constexpr std::string_view kBearer = "Bearer ";

std::string Hex(const unsigned char* bytes, size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

// Returns the HMAC-SHA-256 of `purpose` with the token as key.
std::string Derived(const std::string& token, std::string_view purpose) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned size = 0;
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
       reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size(),
       bytes.data(), &size);
  return Hex(bytes.data(), size);
}

bool Equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// Returns whether a character is literal in URLs, headers and cookies.
bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

Status Denied(const std::string& path, const char* what) {
  return PermissionDenied(
      StrCat(path, ": the token ", what, ": ", std::strerror(errno)));
}

Status MakeToken(const std::string& path) {
  std::array<unsigned char, kRandomBytes> random{};
  if (::getrandom(random.data(), random.size(), 0) !=
      static_cast<ssize_t>(random.size())) {
    return Denied(path, "cannot be made");
  }
  const int fd = ::open(
      path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Denied(path, "cannot be written");
  const std::string text = Hex(random.data(), random.size()) + "\n";
  const bool written = ::write(fd, text.data(), text.size()) ==
                       static_cast<ssize_t>(text.size());
  if (::close(fd) != 0 || !written) {
    const int why = errno;
    ::unlink(path.c_str());
    errno = why;
    return Denied(path, "cannot be written");
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::string> ReadTokenFile(const std::string& path, mode_t forbidden,
                                    size_t most) {
  // What is no file is refused and not waited for, such as a pipe.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT) {
      return NotFound(StrCat(path, ": there is no such token file"));
    }
    return Denied(path, "cannot be read");
  }
  struct stat info {};
  std::string text(most + 1, '\0');
  const bool known = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const ssize_t n = known ? ::read(fd, text.data(), text.size()) : -1;
  ::close(fd);
  if (!known) {
    return PermissionDenied(StrCat(path, ": is not a file, and no token"));
  }
  if (n < 0) return Denied(path, "cannot be read");
  if ((info.st_mode & forbidden) != 0 ||
      (info.st_uid != ::geteuid() && info.st_uid != 0)) {
    return PermissionDenied(
        StrCat(path, ": others can read or replace the token; give it to user ",
               ::geteuid(), " and run `chmod 600` on it"));
  }
  text.resize(static_cast<size_t>(n));
  if (text.size() <= most) return text;
  return InvalidArgument(StrCat(path, ": is larger than ", most,
                                " bytes, the most that a token file has"));
}

StatusOr<Secret> Secret::Of(std::string token, const std::string& place,
                            std::string_view named_by) {
  if (token.size() < kFewestChars || token.size() > kMostChars ||
      !std::all_of(token.begin(), token.end(), IsPlain)) {
    return InvalidArgument(
        StrCat(place, ": a token is ", kFewestChars, " to ", kMostChars,
               " letters, digits, \"-\", \"_\" and \".\"; `openssl rand -hex "
               "32` makes one"));
  }
  return Secret(std::move(token), named_by);
}

StatusOr<Secret> Secret::ReadOrMake(const std::string& path) {
  // A file that others can read is refused rather than repaired, because it may
  // have been read already.
  constexpr mode_t kForbidden = S_IRWXG | S_IRWXO;
  StatusOr<std::string> text = ReadTokenFile(path, kForbidden, kMostChars + 2);
  if (text.status().code() == Code::kNotFound) {
    RETURN_IF_ERROR(MakeToken(path));
    text = ReadTokenFile(path, kForbidden, kMostChars + 2);
  }
  RETURN_IF_ERROR(text.status());
  text->erase(text->find_last_not_of("\r\n") + 1);
  return Of(*std::move(text), path);
}

Secret::Secret(std::string token, std::string_view named_by)
    : token_(std::move(token)),
      cookie_name_("reprise-" +
                   Derived(named_by.empty() ? token_ : std::string(named_by),
                           "cookie name")
                       .substr(0, 12)),
      cookie_value_(Derived(token_, "cookie value")) {}

bool Secret::IsToken(std::string_view given) const {
  return Equal(given, token_);
}

bool Secret::IsBearer(std::string_view authorization) const {
  // The scheme's name is case-insensitive (RFC 9110).
  if (authorization.size() < kBearer.size() ||
      strncasecmp(authorization.data(), kBearer.data(), kBearer.size()) != 0) {
    return false;
  }
  return IsToken(authorization.substr(kBearer.size()));
}

bool Secret::HasCookie(std::string_view cookies) const {
  while (!cookies.empty()) {
    std::string_view one = cookies.substr(0, cookies.find(';'));
    cookies.remove_prefix(std::min(cookies.size(), one.size() + 1));
    while (one.starts_with(' ')) one.remove_prefix(1);
    if (one.size() > cookie_name_.size() && one.starts_with(cookie_name_) &&
        one[cookie_name_.size()] == '=' &&
        Equal(one.substr(cookie_name_.size() + 1), cookie_value_)) {
      return true;
    }
  }
  return false;
}

}  // namespace reprise::server
