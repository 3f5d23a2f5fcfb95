// SPDX-License-Identifier: Apache-2.0
#include "base/budget.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/str_cat.h"

namespace reprise {
namespace {

constexpr std::string_view kHint =
    "write 8GiB, 8GB, a number of bytes, 0.5x, 90% or fit";

struct Unit {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<Unit, 9> kUnits = {{{"B", 1},
                                         {"KiB", int64_t{1} << 10},
                                         {"MiB", int64_t{1} << 20},
                                         {"GiB", int64_t{1} << 30},
                                         {"TiB", int64_t{1} << 40},
                                         {"kB", 1'000},
                                         {"MB", 1'000'000},
                                         {"GB", 1'000'000'000},
                                         {"TB", 1'000'000'000'000}}};

Status Refuse(std::string_view text, std::string_view fact,
              std::string_view remedy) {
  // The text may be long or unprintable: quote only a short, printable part.
  std::string shown;
  for (const char c : text.substr(0, 40)) {
    shown += c >= 0x20 && c < 0x7f ? c : '?';
  }
  if (text.size() > 40) shown += "...";
  return InvalidArgument(
      StrCat("budget \"", shown, "\": ", fact, "; ", remedy));
}

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

// Returns the length of the leading number; the rest is the unit.
size_t NumberLength(std::string_view text) {
  size_t length = 0;
  while (
      length < text.size() &&
      ((text[length] >= '0' && text[length] <= '9') || text[length] == '.')) {
    ++length;
  }
  return length;
}

// Returns whether the unit is a bare prefix: "8G" could mean 8GiB or 8GB.
bool IsBarePrefix(std::string_view unit) {
  return unit.size() == 1 &&
         std::string_view("kKmMgGtT").find(unit[0]) != std::string_view::npos;
}

bool SameLetters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// Returns the unit of the same letters: "GiB" for "gib", "x" for "X".
std::string Meant(std::string_view unit) {
  if (SameLetters(unit, "x")) return "x";
  for (const Unit& known : kUnits) {
    if (SameLetters(unit, known.name)) return std::string(known.name);
  }
  return "";
}

StatusOr<int64_t> ParseBytes(std::string_view text, std::string_view number,
                             double value, int64_t unit_bytes) {
  int64_t bytes = 0;
  if (number.find('.') == std::string_view::npos) {
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), bytes);
    if (error != std::errc() ||
        bytes > std::numeric_limits<int64_t>::max() / unit_bytes) {
      return Refuse(text, "more than 8 EiB", kHint);
    }
    bytes *= unit_bytes;
  } else {
    const double exact = value * static_cast<double>(unit_bytes);
    if (exact >= 9.2e18) return Refuse(text, "more than 8 EiB", kHint);
    bytes = static_cast<int64_t>(std::floor(exact));
  }
  if (bytes <= 0) return Refuse(text, "must be positive", kHint);
  return bytes;
}

}  // namespace

StatusOr<Budget> ParseBudget(std::string_view text) {
  const std::string_view trimmed = Trim(text);
  Budget budget;
  budget.text = std::string(trimmed);
  if (trimmed.empty()) return Refuse(text, "is empty", kHint);
  if (trimmed == "fit") {
    budget.kind = Budget::Kind::kFit;
    return budget;
  }
  if (trimmed[0] == '-') return Refuse(text, "must be positive", kHint);

  const size_t length = NumberLength(trimmed);
  const std::string_view number = trimmed.substr(0, length);
  const std::string_view unit = Trim(trimmed.substr(length));
  double value = 0;
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), value);
  if (SameLetters(trimmed, "fit")) {
    return Refuse(text, "is not known", "did you mean fit?");
  }
  if (length == 0 || error != std::errc() ||
      end != number.data() + number.size() || !std::isfinite(value)) {
    return Refuse(text, "does not start with a number", kHint);
  }

  if (unit == "x") {
    if (value <= 0 || value > 1000) {
      return Refuse(text, "the fraction must be above 0 and at most 1000",
                    "0.5x is static memory plus half of the dynamic peak");
    }
    budget.kind = Budget::Kind::kDynamicFraction;
    budget.fraction = value;
    return budget;
  }
  if (unit == "%") {
    if (value <= 0 || value > 100) {
      return Refuse(text, "must be above 0 % and at most 100 %",
                    "90% is a share of the device's memory");
    }
    budget.kind = Budget::Kind::kDeviceFraction;
    budget.fraction = value / 100;
    return budget;
  }
  if (IsBarePrefix(unit)) {
    const std::string prefix(1, static_cast<char>(std::toupper(unit[0])));
    const std::string decimal = prefix == "K" ? "k" : prefix;
    return Refuse(text, StrCat("the unit \"", unit, "\" can mean two sizes"),
                  StrCat("write ", number, prefix, "iB (binary) or ", number,
                         decimal, "B (decimal)"));
  }
  if (unit.empty()) {
    if (number.find('.') != std::string_view::npos) {
      return Refuse(text, "bytes are whole numbers", kHint);
    }
    ASSIGN_OR_RETURN(budget.bytes, ParseBytes(text, number, value, 1));
    return budget;
  }
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    ASSIGN_OR_RETURN(budget.bytes,
                     ParseBytes(text, number, value, known.bytes));
    return budget;
  }
  const std::string meant = Meant(unit);
  return Refuse(text, "the unit is not known",
                meant.empty() ? std::string(kHint)
                              : StrCat("did you mean ", number, meant, "?"));
}

StatusOr<int64_t> ResolveBudget(const Budget& budget,
                                const BudgetContext& context) {
  switch (budget.kind) {
    case Budget::Kind::kBytes:
      return budget.bytes;
    case Budget::Kind::kDynamicFraction: {
      const int64_t dynamic = context.base_peak_bytes - context.static_bytes;
      if (context.static_bytes < 0 || dynamic < 0) {
        return Refuse(budget.text, "the base peak is not known",
                      "write it in bytes, as 8GiB");
      }
      const double product = budget.fraction * static_cast<double>(dynamic);
      if (product >= 4.6e18 - static_cast<double>(context.static_bytes)) {
        return Refuse(budget.text, "more than 4 EiB", "write it in bytes");
      }
      return context.static_bytes + static_cast<int64_t>(std::floor(product));
    }
    case Budget::Kind::kDeviceFraction:
      if (context.device_bytes <= 0) {
        return Refuse(
            budget.text, "there is no device to take a share of",
            "write a fraction of the dynamic peak, as 0.5x, or bytes, "
            "as 8GiB");
      }
      return static_cast<int64_t>(std::floor(
          budget.fraction * static_cast<double>(context.device_bytes)));
    case Budget::Kind::kFit:
      if (context.device_free_bytes <= 0) {
        return Refuse(
            budget.text, "there is no device with free memory",
            "write a fraction of the dynamic peak, as 0.5x, or bytes, "
            "as 8GiB");
      }
      return context.device_free_bytes;
  }
  return Internal("budget: unknown kind");
}

}  // namespace reprise
