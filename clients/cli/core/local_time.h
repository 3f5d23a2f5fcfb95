// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace reprise::cli {

// Returns a Unix time as "2026-11-23 15:30:41", in the time zone of the user.
std::string LocalTime(int64_t unix_ns);

}  // namespace reprise::cli
