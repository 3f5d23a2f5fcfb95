// SPDX-License-Identifier: Apache-2.0
//
// Parses a budget as people write it, and converts it to bytes.
//
//   "8GiB"        8 * 2^30 bytes; also KiB, MiB, TiB
//   "8GB"         8 * 10^9 bytes; also kB, MB, TB
//   "8589934592"  bytes
//   "0.5x"        static memory + floor(0.5 * (base peak - static memory))
//   "90%"         of the device's total memory
//   "fit"         the device memory that is free now
//
// A bare "8G" is rejected with a suggestion, because it could mean either unit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace reprise {

struct Budget {
  enum class Kind { kBytes, kDynamicFraction, kDeviceFraction, kFit };
  Kind kind = Kind::kBytes;
  int64_t bytes = 0;      // kBytes
  double fraction = 0.0;  // 0.5 for "0.5x", 0.9 for "90%"
  std::string text;       // as the user wrote it
};

// Parses a budget. INVALID_ARGUMENT: names the text, the fact and what to write
// instead.
StatusOr<Budget> ParseBudget(std::string_view text);

struct BudgetContext {
  int64_t static_bytes = 0;
  int64_t base_peak_bytes = 0;
  // 0: no device (a graph file), or unknown.
  int64_t device_bytes = 0;
  int64_t device_free_bytes = 0;
};

// Returns the budget in bytes, static plus dynamic memory. INVALID_ARGUMENT:
// "%" or "fit" without a device (suggests "x").
StatusOr<int64_t> ResolveBudget(const Budget& budget,
                                const BudgetContext& context);

}  // namespace reprise
