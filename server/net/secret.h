// SPDX-License-Identifier: Apache-2.0
//
// What a caller over TCP has to know: the token. Loopback is open to every
// user of a machine, so an address alone says nothing about who is there.
//
//   file     DATA_DIR/token, mode 0600, made once: links keep working over
//            restarts; or the one of --token-file
//   API      Authorization: Bearer TOKEN, over HTTP and over gRPC
//   page     a link with ?token=TOKEN, answered with a cookie
//
// The cookie's value is made from the token and cannot be turned back into it.
// A new file is a new token: links and cookies of before end with it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace reprise::server {

// What a caller without it is told, over every protocol.
inline constexpr char kAsksForToken[] =
    "this server asks for its token: open the link that `reprise status` "
    "prints, or send the token as `Authorization: Bearer TOKEN`";

class Secret {
 public:
  // Reads the file, or makes it where there is none. PERMISSION_DENIED where
  // others could read it, or it cannot be written or read.
  static StatusOr<Secret> ReadOrMake(const std::string& path);

  // Reads a file that somebody else wrote, such as a mounted secret.
  // NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT: not 16 to 512 letters,
  // digits, "-", "_" and ".".
  static StatusOr<Secret> Read(const std::string& path);

  explicit Secret(std::string token);

  const std::string& token() const { return token_; }
  // Of its own for each token, since browsers keep the cookies of all ports of
  // a host together.
  const std::string& cookie_name() const { return cookie_name_; }
  const std::string& cookie_value() const { return cookie_value_; }

  // In the same time whatever is given, but for its length.
  bool IsToken(std::string_view given) const;
  // The value of an Authorization header: "Bearer TOKEN".
  bool IsBearer(std::string_view authorization) const;
  // The value of a Cookie header, which may hold other cookies.
  bool HasCookie(std::string_view cookies) const;

 private:
  std::string token_;
  std::string cookie_name_;
  std::string cookie_value_;
};

}  // namespace reprise::server
