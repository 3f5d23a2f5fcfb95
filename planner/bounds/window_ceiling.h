// SPDX-License-Identifier: Apache-2.0
//
// Upper limits for what windows can prove, without solving them.
//
// A window's bound is the cheapest way to hold what the future needs within the
// room at one op (window_bound.h). Running again what the cut of one window
// runs again, and saving the rest, is also a way at every other op if the bytes
// fit there, and its cost there limits the bound there. One walk over the step
// gives all these limits, while a window takes ten max-flows. Equal blocks have
// equal cuts, so one solved window covers most of the step.
//
// For a set R of ops, let v be needed until u(v), by the base order or by ops
// of R whose outputs are needed until then:
//
//   bytes(t) = static + workspace(t) + writes(t)
//            + sum of bytes(v), made before t and read at t or later, that R
//              does not make or that must be present while t runs
//   cost(t)  = sum of c(o) over o in R before t whose outputs are read at t
//              or later
//
// and if bytes(t) <= budget, then bound(t) <= cost(t). O(ops + arities) per
// set.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

class WindowCeiling {
 public:
  static constexpr int64_t kUnknown = int64_t{1} << 62;

  WindowCeiling(const Problem& problem, int64_t budget_bytes);

  // Lowers the ceilings, given ops that a solved window runs again.
  void Lower(const std::vector<OpId>& recomputed);

  // Returns the most that the window at this op can prove, in added time.
  int64_t At(OpId at) const { return at_most_[at]; }

 private:
  const Problem& problem_;
  const int64_t budget_bytes_;
  std::vector<OpId> last_trigger_;  // by op: the last trigger up to it
  std::vector<int64_t> own_bytes_;  // by op: static, workspace, writes
  std::vector<int64_t> at_most_;    // by op
};

}  // namespace reprise::planner
