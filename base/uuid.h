// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace reprise {

// A new UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then random bits, so
// that ids sort by time of birth.
std::string NewUuid();

// The same form for something that has a name and a time of birth: always the
// same id for the same two. Not random: whoever knows both knows the id.
std::string UuidOf(int64_t unix_ms, std::string_view name);

}  // namespace reprise
