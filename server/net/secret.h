// SPDX-License-Identifier: Apache-2.0
//
// The token that callers over TCP need. Every user of a machine can reach
// loopback, so an address alone does not identify the caller.
//
//   file     DATA_DIR/token, mode 0600: links survive restarts, but for one
//            after a daemon that was killed; or the file of --token-file, which
//            may hold those of several users (tokens.h)
//   API      Authorization: Bearer TOKEN, over HTTP and over gRPC
//   page     a link with ?token=TOKEN, answered with a cookie
//
// The cookie's value is derived from the token and does not reveal it. A new
// file means a new token: earlier links and cookies stop working.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace reprise::server {

// The error message for a caller without it, in every protocol.
inline constexpr char kAsksForToken[] =
    "this server asks for its token: open the link that `reprise status` "
    "prints, or send the token as `Authorization: Bearer TOKEN`";

// Reads a token file of at most `most` bytes that no others can read or replace;
// `forbidden`: the rights that nobody else may have. NOT_FOUND,
// PERMISSION_DENIED; INVALID_ARGUMENT: it is larger.
StatusOr<std::string> ReadTokenFile(const std::string& path, mode_t forbidden,
                                    size_t most);

class Secret {
 public:
  // Reads the file, or creates it if it does not exist. PERMISSION_DENIED:
  // others could read it, or it cannot be read or written.
  static StatusOr<Secret> ReadOrMake(const std::string& path);

  // INVALID_ARGUMENT: not 16 to 512 letters, digits, "-", "_" and ".". The
  // message begins with `place`, and does not contain the token. The cookie has
  // the name of the token `named_by`; its own, if that is empty.
  static StatusOr<Secret> Of(std::string token, const std::string& place,
                             std::string_view named_by = "");

  explicit Secret(std::string token, std::string_view named_by = "");

  const std::string& token() const { return token_; }
  // Depends on a token, because browsers share the cookies of all ports of a
  // host.
  const std::string& cookie_name() const { return cookie_name_; }
  const std::string& cookie_value() const { return cookie_value_; }

  // Compares in constant time, except for the length.
  bool IsToken(std::string_view given) const;
  // Takes the value of an Authorization header: "Bearer TOKEN".
  bool IsBearer(std::string_view authorization) const;
  // Takes the value of a Cookie header, which may contain other cookies.
  bool HasCookie(std::string_view cookies) const;

 private:
  std::string token_;
  std::string cookie_name_;
  std::string cookie_value_;
};

}  // namespace reprise::server
