// SPDX-License-Identifier: Apache-2.0
//
// No solver in this build.
#include "planner/bounds/lp.h"

namespace reprise::planner {

bool HasLpSolver() { return false; }

class LpSeries::Solver {};
LpSeries::LpSeries(const LinearProgram&, const std::function<bool()>&) {}
LpSeries::~LpSeries() = default;
void LpSeries::BeginFrom(const std::vector<uint8_t>&) {}
void LpSeries::SetBounds(int32_t, double, double) {}
LpSeries::Answer LpSeries::Solve(int) { return {}; }
int64_t LpSeries::iterations() const { return 0; }
std::vector<uint8_t> LpSeries::Basis() const { return {}; }

}  // namespace reprise::planner
