// SPDX-License-Identifier: Apache-2.0
//
// Bytes, times and percentages as people write and read them.
//
// Printing is binary with one decimal and a space: 0 B, 1023 B, 1.5 KiB,
// 80.0 GiB. The Python and TypeScript packages print the same; all three are
// tested against tests/fixtures/units.json.
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
