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

constexpr double kWidth = 720;
constexpr double kHeight = 400;
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 50;
constexpr double kBottom = 50;

// Escapes a name, which comes from a file and must not become markup.
std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (static_cast<unsigned char>(c) >= ' ') {
      out += c;
    }
  }
  return out;
}

// One decimal: a tenth of a pixel.
std::string Tenths(double value) {
  const auto tenths = static_cast<int64_t>(std::lround(value * 10));
  return StrCat(tenths / 10, ".", tenths % 10);
}

std::string Text(double x, double y, std::string_view anchor,
                 std::string_view text) {
  return StrCat("<text x=\"", Tenths(x), "\" y=\"", Tenths(y),
                "\" text-anchor=\"", anchor, "\">", Escaped(text), "</text>\n");
}

std::string Line(double x1, double y1, double x2, double y2) {
  return StrCat("<path class=\"grid\" d=\"M", Tenths(x1), " ", Tenths(y1), "L",
                Tenths(x2), " ", Tenths(y2), "\"/>\n");
}

// Maps budgets and overheads to page coordinates.
struct Scale {
  double low = 0, high = 1, top = 0.001;
  double X(double budget) const {
    return kLeft + (budget - low) / (high - low) * (kWidth - kLeft - kRight);
  }
  double Y(double overhead) const {
    const double part = std::clamp(overhead / top, 0.0, 1.0);
    return kHeight - kBottom - part * (kHeight - kTop - kBottom);
  }
};

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

std::string CurveSvg(const std::vector<v1::TradeoffPoint>& points,
                     std::string_view title) {
  Scale scale;
  bool first = true;
  for (const v1::TradeoffPoint& p : points) {
    if (!p.feasible()) continue;
    const auto budget = static_cast<double>(p.budget_bytes());
    scale.low = first ? budget : std::min(scale.low, budget);
    scale.high = first ? budget : std::max(scale.high, budget);
    scale.top = std::max(scale.top, p.overhead());
    first = false;
  }
  if (scale.high <= scale.low) scale.high = scale.low + 1;

  std::string svg = StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ",
      Tenths(kWidth), " ", Tenths(kHeight),
      "\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<style>.grid{stroke:#ccc}.plan{stroke:#0072b2;stroke-width:2;"
      "fill:none}.bound{stroke:#555;stroke-dasharray:4 3;fill:none}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
  svg += Text(kLeft, 24, "start", title);
  for (int tick = 0; tick <= 4; ++tick) {
    const double overhead = scale.top * tick / 4;
    const double budget = scale.low + (scale.high - scale.low) * tick / 4;
    svg += Line(kLeft, scale.Y(overhead), kWidth - kRight, scale.Y(overhead));
    svg += Text(kLeft - 8, scale.Y(overhead) + 4, "end",
                FormatPercent(overhead, /*sign=*/true));
    svg += Text(scale.X(budget), kHeight - kBottom + 20,
                tick == 4 ? "end" : "middle",
                FormatBytes(static_cast<int64_t>(budget)));
  }
  std::string plan;
  std::string bound;
  std::string marks;
  for (const v1::TradeoffPoint& p : points) {
    if (!p.feasible()) continue;
    const double x = scale.X(static_cast<double>(p.budget_bytes()));
    const std::string step = plan.empty() ? "M" : "L";
    plan += StrCat(step, Tenths(x), " ", Tenths(scale.Y(p.overhead())));
    bound += StrCat(step, Tenths(x), " ", Tenths(scale.Y(p.bound())));
    marks += StrCat(
        "<circle cx=\"", Tenths(x), "\" cy=\"", Tenths(scale.Y(p.overhead())),
        "\" r=\"4\" fill=\"#0072b2\"><title>", FormatBytes(p.budget_bytes()),
        ": ", FormatPercent(p.overhead(), /*sign=*/true), ", bound ",
        FormatPercent(p.bound()), "</title></circle>\n");
  }
  svg += StrCat("<path class=\"bound\" d=\"", bound, "\"/>\n",
                "<path class=\"plan\" d=\"", plan, "\"/>\n", marks);
  svg += Text(kWidth - kRight, 24, "end",
              "overhead over budget; dashed: proven lower bound");
  return svg + "</svg>\n";
}

}  // namespace reprise::cli
