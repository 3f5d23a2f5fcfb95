// SPDX-License-Identifier: Apache-2.0
//
// The words of `reprise.graph/1` for the enums of graph.proto, indexed by
// number.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace reprise::formats {

inline constexpr std::string_view kPhaseNames[] = {"", "forward", "backward",
                                                   "optimizer"};
inline constexpr std::string_view kKindNames[] = {
    "", "pure", "seeded", "once", "collective", "view"};
inline constexpr std::string_view kCategoryNames[] = {
    "",           "parameter", "gradient",  "optimizer_state",
    "activation", "input",     "temporary", "communication",
    "unknown",    "static",    "beside"};

// The categories as pages and commands call them.
inline constexpr std::string_view kCategoryTexts[] = {
    "unknown",        "parameters",
    "gradients",      "optimizer state",
    "activations",    "inputs",
    "temporaries",    "communication",
    "unknown",        "parameters, buffers and optimizer state",
    "beside the step"};

// Returns the word of a number, or an empty string.
inline std::string_view WordOf(std::span<const std::string_view> names,
                               int number) {
  if (number < 0 || number >= static_cast<int>(names.size())) return "";
  return names[static_cast<size_t>(number)];
}

// Lists the words for error messages: "a, b or c".
inline std::string Known(std::span<const std::string_view> names) {
  std::string text;
  for (size_t i = 1; i < names.size(); ++i) {
    if (i > 1) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace reprise::formats
