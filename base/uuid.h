// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace reprise {

// Returns a new UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then random
// bits, so that ids sort by creation time.
std::string NewUuid();

// Returns a UUIDv7 derived from a time and a name: the same id for the same
// arguments. Not random: whoever knows both can compute it.
std::string UuidOf(int64_t unix_ms, std::string_view name);

}  // namespace reprise
