// SPDX-License-Identifier: Apache-2.0
//
// Pads texts with spaces to `width` bytes; longer texts stay as they are.
#pragma once

#include <string>

namespace reprise::cli {

inline std::string Left(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

inline std::string Right(std::string text, size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

}  // namespace reprise::cli
