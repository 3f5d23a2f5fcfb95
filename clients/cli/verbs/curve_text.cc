// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/str_cat.h"
#include "clients/cli/core/console.h"
#include "clients/cli/verbs/peak_report.h"
#include "formats/convert/sentence.h"

namespace reprise::cli {
namespace {

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

}  // namespace reprise::cli
