// SPDX-License-Identifier: Apache-2.0
//
// No MIP solver in this build.
#include "planner/bounds/lp.h"
#include "planner/bounds/mip.h"

namespace reprise::planner {

bool MipAvailable() { return false; }

MipAnswer SolveLp(const MipProgram&, const std::function<bool()>&) {
  return {};
}

MipAnswer SolveMip(const MipProgram&, const MipOptions&) { return {}; }

class LpSeries::Solver {};
LpSeries::LpSeries(const MipProgram&, const std::function<bool()>&) {}
LpSeries::~LpSeries() = default;
void LpSeries::BeginFrom(const std::vector<uint8_t>&) {}
void LpSeries::SetBounds(int32_t, double, double) {}
LpSeries::Answer LpSeries::Solve(int) { return {}; }
int64_t LpSeries::iterations() const { return 0; }
std::vector<uint8_t> LpSeries::Basis() const { return {}; }

}  // namespace reprise::planner
