// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/lp.h"

#include <algorithm>
#include <cmath>

namespace reprise::planner {

int32_t LinearProgram::AddColumn(double cost_of, double from, double to) {
  cost.push_back(cost_of);
  lower.push_back(from);
  upper.push_back(to);
  return column_count() - 1;
}

void LinearProgram::AddEntry(int32_t column_of, double value_of) {
  column.push_back(column_of);
  value.push_back(value_of);
}

void LinearProgram::CloseRow(double from, double to) {
  row_begin.push_back(static_cast<int32_t>(column.size()));
  row_lower.push_back(from);
  row_upper.push_back(to);
}

double LpScale(int64_t largest) {
  int exponent = 0;
  std::frexp(static_cast<double>(std::max<int64_t>(1, largest)), &exponent);
  return std::ldexp(1.0, -exponent);
}

}  // namespace reprise::planner
