// SPDX-License-Identifier: Apache-2.0
#include "base/str_cat.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string_view>

namespace reprise {
namespace {

constexpr std::array<std::string_view, 7> kByteUnits = {
    "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

// floor(value / unit * 10 + 1/2) for a power of two, without overflow.
uint64_t RoundedTenths(uint64_t value, int shift) {
  const uint64_t whole = value >> shift;
  const uint64_t rest = value & ((uint64_t{1} << shift) - 1);
  // rest < 2^60, so rest * 10 fits; halves round up.
  const uint64_t half = uint64_t{1} << (shift - 1);
  return whole * 10 + ((rest * 10 + half) >> shift);
}

std::string Tenths(uint64_t tenths) {
  return StrCat(tenths / 10, ".", tenths % 10);
}

// Three significant digits, trailing zeros of the fraction dropped:
// 1500 / 1000 -> "1.5", 1234 / 1000 -> "1.23", 41200 / 1000 -> "41.2".
std::string ThreeDigits(uint64_t value, uint64_t unit) {
  uint64_t scale = 100;  // digits after the point, as a power of ten
  if (value >= 10 * unit) scale = 10;
  if (value >= 100 * unit) scale = 1;
  const uint64_t step = unit / scale;
  const uint64_t scaled = value / step + (value % step >= step - step / 2);
  std::string text = StrCat(scaled / scale);
  uint64_t rest = scaled % scale;
  if (rest == 0) return text;
  text += '.';
  for (uint64_t digit = scale / 10; digit > 0 && rest > 0; digit /= 10) {
    text += static_cast<char>('0' + rest / digit);
    rest %= digit;
  }
  return text;
}

// Returns the absolute value, also of the smallest int64.
uint64_t Magnitude(int64_t value) {
  return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value)
                   : static_cast<uint64_t>(value);
}

// Returns the bytes of the character that starts at text[0]; 0 if it is not
// valid UTF-8. Overlong forms, surrogates and values above U+10FFFF are
// invalid.
size_t CharacterBytes(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  size_t bytes = 0;
  if (first >= 0xc2 && first <= 0xdf) bytes = 2;
  if (first >= 0xe0 && first <= 0xef) bytes = 3;
  if (first >= 0xf0 && first <= 0xf4) bytes = 4;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  if (first == 0xe0 && at(1) < 0xa0) return 0;
  if (first == 0xed && at(1) > 0x9f) return 0;
  if (first == 0xf0 && at(1) < 0x90) return 0;
  if (first == 0xf4 && at(1) > 0x8f) return 0;
  return bytes;
}

// Returns the value of the character in the first `bytes` of valid UTF-8.
uint32_t ValueOf(std::string_view text, size_t bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (bytes == 1) return at(0);
  uint32_t value = at(0) & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) value = value << 6 | (at(i) & 0x3fU);
  return value;
}

// Returns whether a terminal, or a reader's eye, is led by it.
bool Commands(uint32_t value) {
  return value < 0x20 || (value >= 0x7f && value < 0xa0) || value == 0x61c ||
         value == 0x200e || value == 0x200f ||
         (value >= 0x2028 && value <= 0x202e) ||
         (value >= 0x2066 && value <= 0x2069);
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool IsHexDigit(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  const std::string minus = bytes < 0 ? "-" : "";
  const uint64_t value = Magnitude(bytes);
  if (value < 1024) return StrCat(minus, value, " B");
  for (size_t unit = 1; unit < kByteUnits.size(); ++unit) {
    const uint64_t tenths = RoundedTenths(value, static_cast<int>(unit) * 10);
    // 1023.96 KiB rounds to 1024.0 KiB, so use 1.0 MiB.
    if (tenths < 10240 || unit + 1 == kByteUnits.size()) {
      return StrCat(minus, Tenths(tenths), " ", kByteUnits[unit]);
    }
  }
  return {};
}

std::string FormatDuration(int64_t ns) {
  const std::string minus = ns < 0 ? "-" : "";
  const uint64_t value = Magnitude(ns);
  if (value < 1000) return StrCat(minus, value, " ns");
  // At these thresholds, three digits round up to the next unit.
  if (value < 999'500) return StrCat(minus, ThreeDigits(value, 1000), " us");
  if (value < 999'500'000) {
    return StrCat(minus, ThreeDigits(value, 1'000'000), " ms");
  }
  return StrCat(minus, ThreeDigits(value, 1'000'000'000), " s");
}

std::string FormatPercent(double fraction, bool sign) {
  if (!std::isfinite(fraction) || std::abs(fraction) > 1e12) return "? %";
  const int64_t tenths = std::llround(fraction * 1000);
  const std::string front = tenths < 0 ? "-" : sign ? "+" : "";
  return StrCat(front, Tenths(Magnitude(tenths)), " %");
}

std::string ValidUtf8(std::string_view text, size_t max_bytes) {
  static constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  std::string out;
  out.reserve(text.size() < max_bytes ? text.size() : max_bytes);
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    // A zero byte is valid UTF-8, but would end a C string.
    const bool valid = bytes > 0 && text[0] != '\0';
    const std::string_view next = valid ? text.substr(0, bytes) : kReplacement;
    if (out.size() + next.size() > max_bytes) break;
    out += next;
    text.remove_prefix(valid ? bytes : 1);
  }
  return out;
}

std::string Shown(std::string_view text, bool keeps_lines) {
  static constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const uint32_t value = bytes == 0 ? 0 : ValueOf(text, bytes);
    if (bytes == 0) {
      out += kReplacement;
    } else if (Commands(value) &&
               !(keeps_lines && (value == '\n' || value == '\t'))) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", value);
      out += escape;
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return out;
}

bool IsPlainId(std::string_view text, size_t max_bytes) {
  if (text.empty() || text.size() > max_bytes) return false;
  for (const char c : text) {
    if (!IsLetter(c) && !IsDigit(c) &&
        std::string_view("._:-").find(c) == std::string_view::npos) {
      return false;
    }
  }
  return true;
}

bool IsUuid(std::string_view text) {
  if (text.size() != 36) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? text[i] != '-' : !IsHexDigit(text[i])) return false;
  }
  return true;
}

}  // namespace reprise
