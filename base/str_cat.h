// SPDX-License-Identifier: Apache-2.0
//
// StrCat: concatenates texts and integers. GCC 12 has no <format>.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace reprise {

namespace internal {
inline void Append(std::string& out, std::string_view text) { out += text; }
inline void Append(std::string& out, char c) { out += c; }
template <std::integral T>
void Append(std::string& out, T value) {
  out += std::to_string(value);
}
}  // namespace internal

template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::string out;
  (internal::Append(out, parts), ...);
  return out;
}

}  // namespace reprise
