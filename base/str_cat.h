// SPDX-License-Identifier: Apache-2.0
//
// Text: put together, written for people, made safe for protos and logs.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
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

// Concatenates texts and integers. GCC 12 has no <format>.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::string out;
  (internal::Append(out, parts), ...);
  return out;
}

// Formats bytes, times and percentages for people.
//
// Bytes are binary, with one decimal and a space: 0 B, 1023 B, 1.5 KiB, 80.0
// GiB. The Python and TypeScript packages format the same way;
// tests/fixtures/units.json tests all three.

// 1536 -> "1.5 KiB". Negative values get a leading minus.
std::string FormatBytes(int64_t bytes);

// 412'000'000 -> "412 ms", 1'500 -> "1.5 us", 1'234'567'890 -> "1.23 s".
std::string FormatDuration(int64_t ns);

// 0.0937 -> "9.4 %"; with `sign`, "+9.4 %".
std::string FormatPercent(double fraction, bool sign = false);

// Makes text from outside safe for protos and logs.

// Returns valid UTF-8 of at most `max_bytes`: invalid bytes become U+FFFD, and
// truncation never splits a character. Parsers reject a proto3 string that is
// not valid UTF-8, together with the chunk that contains it.
std::string ValidUtf8(std::string_view text, size_t max_bytes);

// Returns text that commands no terminal and begins no line of its own: what
// others wrote may hold both. Control characters, line separators and what turns
// the direction of writing become escapes as in JSON ("\\u001b"), what is not
// UTF-8 becomes U+FFFD. With `keeps_lines`, line feeds and tabs stay.
std::string Shown(std::string_view text, bool keeps_lines = false);

// Returns whether `text` is 1 to `max_bytes` letters, digits and "._:-".
bool IsPlainId(std::string_view text, size_t max_bytes);

// Returns whether `text` is a UUID: 8-4-4-4-12 hex digits.
bool IsUuid(std::string_view text);

}  // namespace reprise
