// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/str_cat.h"
#include "clients/cli/core/console.h"
#include "clients/cli/verbs/peak_report.h"
#include "formats/convert/sentence.h"

namespace reprise::cli {
namespace {

constexpr int kColumns = 60;
constexpr int kLines = 12;

std::string CurveRow(const std::string& budget, const std::string& peak,
                     const std::string& step, const std::string& overhead,
                     const std::string& bound, const std::string& gap) {
  return StrCat("  ", Right(budget, 10), Right(peak, 12), Right(step, 10),
                Right(overhead, 12), Right(bound, 10), Right(gap, 9), "\n");
}

}  // namespace

std::string CurveTable(const std::vector<v1::TradeoffPoint>& points) {
  std::string text =
      CurveRow("budget", "peak", "step", "overhead", "bound", "gap");
  for (const v1::TradeoffPoint& p : points) {
    if (p.feasible()) {
      const double gap = std::max(0.0, p.overhead() - p.bound());
      text += CurveRow(FormatBytes(p.budget_bytes()),
                       FormatBytes(p.peak_bytes()), FormatDuration(p.time_ns()),
                       FormatPercent(p.overhead(), /*sign=*/true),
                       FormatPercent(p.bound()), FormatPercent(gap));
      continue;
    }
    const int64_t needed = p.infeasible().smallest_budget_bytes();
    text += StrCat("  ", Right(FormatBytes(p.budget_bytes()), 10));
    text +=
        needed > p.budget_bytes()
            ? StrCat("  no plan fits: op ", p.infeasible().blocking_op(), " ",
                     p.infeasible().blocking_op_name(), " needs at least ",
                     formats::FormatBytesUp(needed), "\n")
            : "  no plan found\n";
  }
  return text;
}

std::string CurvePicture(const std::vector<v1::TradeoffPoint>& points) {
  int64_t low = 0;
  int64_t high = 0;
  double top = 0;
  int feasible = 0;
  for (const v1::TradeoffPoint& p : points) {
    if (!p.feasible()) continue;
    low = feasible == 0 ? p.budget_bytes() : std::min(low, p.budget_bytes());
    high = std::max(high, p.budget_bytes());
    top = std::max(top, p.overhead());
    ++feasible;
  }
  if (feasible < 2 || high <= low) return "";
  if (top <= 0) top = 0.001;

  std::vector<std::string> grid(kLines, std::string(kColumns, ' '));
  const auto plot = [&](int64_t budget, double overhead, char mark) {
    const double x = static_cast<double>(budget - low) /
                     static_cast<double>(high - low) * (kColumns - 1);
    const double y = std::clamp(overhead / top, 0.0, 1.0) * (kLines - 1);
    const auto column = static_cast<size_t>(std::lround(x));
    const auto row = static_cast<size_t>(kLines - 1 - std::lround(y));
    if (grid[row][column] != '*') grid[row][column] = mark;
  };
  for (const v1::TradeoffPoint& p : points) {
    if (p.feasible()) plot(p.budget_bytes(), p.overhead(), '*');
  }
  for (const v1::TradeoffPoint& p : points) {
    if (p.feasible()) plot(p.budget_bytes(), p.bound(), '.');
  }

  std::string text;
  for (int row = 0; row < kLines; ++row) {
    const std::string label = row == 0 ? FormatPercent(top, /*sign=*/true)
                              : row == kLines - 1 ? std::string("0")
                                                  : std::string();
    const std::string& line = grid[static_cast<size_t>(row)];
    const size_t end = line.find_last_not_of(' ');
    text +=
        StrCat("  ", Right(label, 9), " |",
               end == std::string::npos ? "" : line.substr(0, end + 1), "\n");
  }
  text += StrCat("  ", Right("", 9), " +", std::string(kColumns, '-'), "\n");
  const std::string from = FormatBytes(low);
  text += StrCat(
      "  ", Right("", 11), Left(from, 20),
      Right(FormatBytes(high), kColumns - std::max<size_t>(20, from.size())),
      "\n  ", Right("", 11), "* overhead of the plan   . proven lower bound\n");
  return text;
}

}  // namespace reprise::cli
