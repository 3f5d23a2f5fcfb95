// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <array>
#include <cmath>
#include <string_view>

#include "base/str_cat.h"

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

}  // namespace reprise
