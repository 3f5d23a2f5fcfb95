// SPDX-License-Identifier: Apache-2.0
#include "server/net/tokens.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

constexpr size_t kMostFileBytes = 64 << 10;
constexpr std::string_view kBlank = " \t";
constexpr char kOneForwardedUser[] =
    "the token is a proxy's: its calls need one header X-Forwarded-User with "
    "the name of a user, 1 to 128 letters, digits, \".\", \"_\", \"-\", \"+\", "
    "\"@\" and \"|\"";

// A proxy is no role of a caller: it speaks for users.
constexpr std::array<std::pair<std::string_view, Role>, 5> kRoles = {
    {{"send", Role::kSend},
     {"user", Role::kUser},
     {"viewer", Role::kViewer},
     {"admin", Role::kAdmin},
     {"proxy", Role::kUser}}};

std::vector<std::string_view> WordsIn(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(kBlank)));
    if (line.empty()) return words;
    words.push_back(line.substr(0, line.find_first_of(kBlank)));
    line.remove_prefix(words.back().size());
  }
}

}  // namespace

Tokens::Tokens(Secret only) : own_(only.token()) {
  holders_.push_back({.secret = std::move(only), .access = kOwnAccess});
}

StatusOr<Tokens> Tokens::Read(const std::string& path) {
  // A cluster mounts secrets that are readable for the pod's group.
  ASSIGN_OR_RETURN(const std::string text,
                   ReadTokenFile(path, S_IWGRP | S_IRWXO, kMostFileBytes));
  Tokens tokens;
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    RETURN_IF_ERROR(tokens.Add(line, StrCat(path, ", line ", number)));
  }
  if (tokens.holders_.empty()) {
    RETURN_IF_ERROR(Secret::Of("", path).status());
  }
  if (tokens.own_.empty()) {
    return InvalidArgument(
        StrCat(path,
               ": gives nobody the role admin, so nobody could do everything; "
               "add a line NAME admin TOKEN"));
  }
  return tokens;
}

Status Tokens::Add(std::string_view line, const std::string& place) {
  const std::vector<std::string_view> words = WordsIn(line);
  if (words.empty() || words[0].starts_with('#')) return OkStatus();
  if (words.size() != 1 && words.size() != 3) {
    return InvalidArgument(StrCat(
        place, ": must be a token, or NAME ROLE TOKEN with blanks between"));
  }
  Access access = kOwnAccess;
  bool is_proxy = false;
  if (words.size() == 3) {
    if (!IsUserName(words[0])) {
      return InvalidArgument(
          StrCat(place,
                 ": a name is 1 to 128 letters, digits, \".\", \"_\", \"-\", "
                 "\"+\", \"@\" and \"|\", and neither \"server\" nor "
                 "\"token\""));
    }
    const auto* role =
        std::find_if(kRoles.begin(), kRoles.end(),
                     [&](const auto& one) { return one.first == words[1]; });
    if (role == kRoles.end()) {
      return InvalidArgument(StrCat(
          place, ": the role must be send, user, viewer, admin or proxy"));
    }
    access = {.role = role->second, .name = std::string(words[0])};
    is_proxy = role->first == "proxy";
  }
  ASSIGN_OR_RETURN(
      Secret secret,
      Secret::Of(std::string(words.back()), place,
                 holders_.empty() ? "" : holders_[0].secret.token()));
  for (const Holder& other : holders_) {
    if (other.secret.IsToken(secret.token())) {
      return InvalidArgument(
          StrCat(place, ": has the token of a line above; give each its own"));
    }
    if (other.access.name == access.name && other.access.role == access.role &&
        other.is_proxy == is_proxy) {
      return InvalidArgument(
          access.name.empty()
              ? StrCat(place,
                       ": is the second token without a name; write "
                       "NAME ROLE TOKEN")
              : StrCat(place, ": ", access.name,
                       " has this role in a line above; remove one"));
    }
  }
  if (own_.empty() && access.role == Role::kAdmin) own_ = secret.token();
  holders_.push_back({.secret = std::move(secret),
                      .access = std::move(access),
                      .is_proxy = is_proxy});
  return OkStatus();
}

StatusOr<Access> Tokens::AccessOf(const Holder& holder,
                                  const Credentials& given) {
  if (!holder.is_proxy) return holder.access;
  if (given.forwarded_users.size() != 1 ||
      !IsUserName(given.forwarded_users[0])) {
    return Status(Code::kUnauthenticated, kOneForwardedUser);
  }
  return Access{.role = holder.access.role,
                .name = std::string(given.forwarded_users[0])};
}

StatusOr<Access> Tokens::Find(const Credentials& given) const {
  // Each is compared, so that the time does not say which it was.
  const Holder* by_token = nullptr;
  const Holder* by_cookie = nullptr;
  for (const Holder& holder : holders_) {
    if (holder.secret.IsBearer(given.authorization)) by_token = &holder;
    if (holder.secret.HasCookie(given.cookies)) by_cookie = &holder;
  }
  if (by_token != nullptr) return AccessOf(*by_token, given);
  // Of a token that opens no page, nobody was given the cookie.
  if (by_cookie != nullptr) return AccessOf(*by_cookie, given);
  return Status(Code::kUnauthenticated, kAsksForToken);
}

std::optional<std::string> Tokens::CookieFor(std::string_view token) const {
  std::optional<std::string> cookie;
  for (const Holder& holder : holders_) {
    if (!holder.secret.IsToken(token) || holder.is_proxy ||
        holder.access.role == Role::kSend) {
      continue;
    }
    cookie =
        StrCat(holder.secret.cookie_name(), "=", holder.secret.cookie_value());
  }
  return cookie;
}

}  // namespace reprise::server
