// SPDX-License-Identifier: Apache-2.0
#include "server/core/access.h"

#include <algorithm>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

constexpr size_t kMostNameChars = 128;
constexpr std::string_view kRoleWords[] = {"nobody", "send", "user", "viewer",
                                           "admin"};

bool Fits(Role role, Needs needs) {
  if (role == Role::kNobody) return false;
  if (role == Role::kAdmin) return true;
  switch (needs) {
    case Needs::kStatus:
      return true;
    case Needs::kSending:
      return role == Role::kSend || role == Role::kUser;
    case Needs::kReading:
      return role == Role::kUser || role == Role::kViewer;
    case Needs::kChanging:
      return role == Role::kUser;
    case Needs::kAdmin:
      return false;
  }
  return false;
}

}  // namespace

Status CheckRole(const Access& access, Needs needs, std::string_view what) {
  if (Fits(access.role, needs)) return OkStatus();
  std::string roles;
  for (const Role role :
       {Role::kSend, Role::kUser, Role::kViewer, Role::kAdmin}) {
    if (!Fits(role, needs)) continue;
    roles += StrCat(roles.empty() ? "" : " or ",
                    kRoleWords[static_cast<size_t>(role)]);
  }
  return PermissionDenied(StrCat(what, ": the token of ", access.name,
                                 " has the role ",
                                 kRoleWords[static_cast<size_t>(access.role)],
                                 "; use one with the role ", roles));
}

bool IsUserName(std::string_view text) {
  return !text.empty() && text.size() <= kMostNameChars && text != "server" &&
         text != "token" && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  (c >= '0' && c <= '9') ||
                  std::string_view("._-+@|").find(c) != std::string_view::npos;
         });
}

}  // namespace reprise::server
