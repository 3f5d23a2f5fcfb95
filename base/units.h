// SPDX-License-Identifier: Apache-2.0
//
// Formats bytes, times and percentages for people.
//
// Bytes are binary, with one decimal and a space: 0 B, 1023 B, 1.5 KiB, 80.0
// GiB. The Python and TypeScript packages format the same way;
// tests/fixtures/units.json tests all three.
#pragma once

#include <cstdint>
#include <string>

namespace reprise {

// 1536 -> "1.5 KiB". Negative values get a leading minus.
std::string FormatBytes(int64_t bytes);

// 412'000'000 -> "412 ms", 1'500 -> "1.5 us", 1'234'567'890 -> "1.23 s".
std::string FormatDuration(int64_t ns);

// 0.0937 -> "9.4 %"; with `sign`, "+9.4 %".
std::string FormatPercent(double fraction, bool sign = false);

}  // namespace reprise
