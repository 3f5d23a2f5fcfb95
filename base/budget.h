// SPDX-License-Identifier: Apache-2.0
//
// A budget as people write it, and as bytes.
//
//   "8GiB"        8 * 2^30 bytes; also KiB, MiB, TiB
//   "8GB"         8 * 10^9 bytes; also kB, MB, TB
//   "8589934592"  bytes
//   "0.5x"        static memory + floor(0.5 * (base peak - static memory))
//   "90%"         of the device's memory
//   "fit"         what is free on the device now
//
// A bare "8G" is refused with a suggestion, because it can mean two sizes.
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
  std::string text;       // as written
};

// INVALID_ARGUMENT: names the text, the fact and what to write instead.
StatusOr<Budget> ParseBudget(std::string_view text);

struct BudgetContext {
  int64_t static_bytes = 0;
  int64_t base_peak_bytes = 0;
  // 0: there is no device (a graph file), or it is unknown.
  int64_t device_bytes = 0;
  int64_t device_free_bytes = 0;
};

// Bytes for static plus dynamic memory.
// INVALID_ARGUMENT: "%" or "fit" without a device (hints at "x").
StatusOr<int64_t> ResolveBudget(const Budget& budget,
                                const BudgetContext& context);

}  // namespace reprise
