// SPDX-License-Identifier: Apache-2.0
//
// What a caller may do. The token that came with the call says it: its role,
// and the name of whose it is. A run belongs to the name that sent it.
//
//             sends    reads        changes, removes   everything else
//   send      runs     nothing      nothing            no
//   user      runs     its own      its own            no
//   viewer    nothing  everything   nothing            no
//   admin     runs     everything   everything         yes
//
// A token without a name is that of a server with one user: it is an admin's.
// The server itself, and the jobs of its own user, whom the kernel knows, call
// within the process and may do everything.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace reprise::server {

enum class Role { kNobody, kSend, kUser, kViewer, kAdmin };

struct Access {
  Role role = Role::kNobody;
  // Of the token, or of the user whom a proxy names; empty: it has none.
  std::string name = {};

  bool SeesAll() const { return role == Role::kViewer || role == Role::kAdmin; }
};

// Of the server's own calls.
inline const Access kOwnAccess{.role = Role::kAdmin};

// What a call asks for.
enum class Needs { kStatus, kSending, kReading, kChanging, kAdmin };

// Returns PERMISSION_DENIED, and who may do it, if this is not for the role.
// `what`: "Query/GetRun".
Status CheckRole(const Access& access, Needs needs, std::string_view what);

// What identifies a caller in the headers of its call.
struct Credentials {
  std::string_view authorization;
  std::string_view cookies;
  // Each X-Forwarded-User header; counts only from a proxy.
  std::vector<std::string_view> forwarded_users;
};

// UNAUTHENTICATED.
using Authenticate = std::function<StatusOr<Access>(const Credentials&)>;

// Returns whether a text can be the name of a user: 1 to 128 letters, digits and
// ".", "_", "-", "+", "@", "|". What the log calls others ("uid 1000",
// "server") is none, so that no name can be taken for them.
bool IsUserName(std::string_view text);

}  // namespace reprise::server
