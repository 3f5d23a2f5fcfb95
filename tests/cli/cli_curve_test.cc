// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "clients/cli/verbs/peak_report.h"

namespace reprise::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::TradeoffPoint Point(int64_t budget, double overhead, double bound) {
  v1::TradeoffPoint point;
  point.set_budget_bytes(budget);
  point.set_peak_bytes(budget - 1);
  point.set_feasible(true);
  point.set_overhead(overhead);
  point.set_bound(bound);
  point.set_time_ns(1'000'000);
  return point;
}

std::vector<v1::TradeoffPoint> Curve() {
  v1::TradeoffPoint none;
  none.set_budget_bytes(1024);
  none.mutable_infeasible()->set_smallest_budget_bytes(2048);
  none.mutable_infeasible()->set_blocking_op(7);
  none.mutable_infeasible()->set_blocking_op_name("mm");
  return {Point(8192, 0, 0), Point(4096, 0.1, 0.08), Point(2048, 0.4, 0.3),
          none};
}

TEST(CurveText, HasALinePerBudget) {
  const std::string table = CurveTable(Curve());

  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5);
  EXPECT_THAT(table, HasSubstr("4.0 KiB"));
  EXPECT_THAT(table, HasSubstr("+10.0 %"));
  EXPECT_THAT(table, HasSubstr("no plan fits: op 7 mm needs at least 2.0 KiB"));
}

}  // namespace
}  // namespace reprise::cli
