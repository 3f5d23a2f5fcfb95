// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace reprise {

// A new UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then random bits, so
// that ids sort by time of birth.
std::string NewUuid();

}  // namespace reprise
