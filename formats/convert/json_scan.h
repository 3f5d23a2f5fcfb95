// SPDX-License-Identifier: Apache-2.0
//
// Scans a JSON text from outside: is it valid JSON, is its depth reasonable,
// and what kind of file is it? Uses constant memory, so that a hostile file is
// rejected before anything is built from it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace reprise::formats {

// The deepest nesting that is accepted; Reprise's own files need 4.
inline constexpr int kMaxJsonDepth = 64;

struct JsonScan {
  // Value of the top-level key "format"; empty if absent.
  std::string format;
  bool has_format = false;
  bool has_schedule = false;  // a top-level key of a plan
  bool has_ops = false;       // a top-level key of a step graph
};

// INVALID_ARGUMENT: `byte 17: ...` for text that is not one JSON object, is
// truncated, or nests deeper than kMaxJsonDepth.
StatusOr<JsonScan> ScanJson(std::string_view text);

}  // namespace reprise::formats
