// SPDX-License-Identifier: Apache-2.0
//
// The tokens that a server takes, and what each lets its holder do (access.h).
//
//   # The file of --token-file. A token alone is an admin's without a name.
//   admin    admin   1f0c...
//   alice    user    77ab...
//   alice    send    9d10...     for the machines on which alice's jobs run
//   grafana  viewer  0c4e...
//   gate     proxy   5be2...
//
// A proxy is trusted to have authenticated a person: its calls carry one header
// X-Forwarded-User, and are those of a user of this name. From others the header
// means nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/core/access.h"
#include "server/net/secret.h"

namespace reprise::server {

class Tokens {
 public:
  // Reads a file that someone else wrote, such as a mounted secret. NOT_FOUND,
  // PERMISSION_DENIED; INVALID_ARGUMENT names the line, and no token.
  static StatusOr<Tokens> Read(const std::string& path);

  // The one token of a server with one user.
  explicit Tokens(Secret only);

  // Returns what a caller may do. The Authorization header counts before the
  // cookie. UNAUTHENTICATED.
  StatusOr<Access> Find(const Credentials& given) const;

  // Returns the cookie that stands for a token in a browser, as "name=value";
  // nothing if the token is wrong or opens no page. All have one name, so that
  // the link that was opened last counts.
  std::optional<std::string> CookieFor(std::string_view token) const;

  // An admin's: for commands of the daemon's own user.
  const std::string& own() const { return own_; }

 private:
  struct Holder {
    Secret secret;
    Access access;
    bool is_proxy = false;
  };

  Tokens() = default;
  Status Add(std::string_view line, const std::string& place);
  static StatusOr<Access> AccessOf(const Holder& holder,
                                   const Credentials& given);

  std::vector<Holder> holders_;
  std::string own_;
};

}  // namespace reprise::server
