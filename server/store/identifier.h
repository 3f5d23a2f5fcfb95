// SPDX-License-Identifier: Apache-2.0
//
// Checks the ids of runs and sessions, which come from outside.
#pragma once

#include <string_view>

#include "base/status.h"
#include "base/str_cat.h"

namespace reprise::server {

inline constexpr size_t kMaxIdentifierBytes = 71;

// An id must have 1 to 71 letters, digits and ._:- so that it is safe in a URL,
// a shell and a log line. INVALID_ARGUMENT, naming `field`.
inline Status CheckIdentifier(std::string_view field, std::string_view id) {
  if (id.empty() || id.size() > kMaxIdentifierBytes) {
    return InvalidArgument(StrCat(field, ": must have 1 to ",
                                  kMaxIdentifierBytes, " characters, got ",
                                  id.size()));
  }
  for (const char c : id) {
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                         c == ':' || c == '-';
    if (!allowed) {
      return InvalidArgument(
          StrCat(field, ": may hold letters, digits and ._:- only"));
    }
  }
  return OkStatus();
}

}  // namespace reprise::server
