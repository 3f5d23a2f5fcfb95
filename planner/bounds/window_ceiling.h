// SPDX-License-Identifier: Apache-2.0
//
// What the window at an op can prove at most, without solving it.
//
// A window's bound is the cheapest way to hold what the future needs within the
// room at one op (window_bound.h). Run again what the cut of one window runs
// again, and save the rest: that is a way at every other op, too, if the bytes
// fit there, and what it costs there is a ceiling of the bound there. One walk
// over the step gives all of them, where a window takes ten max-flows: equal
// blocks have equal cuts, so one solved window answers for most of the step.
//
// For a set R of ops, with values in need of which v is read until u(v), by the
// base order or by ops of R whose outputs are read until then:
//
//   bytes(t) = static + workspace(t) + writes(t)
//            + sum of bytes(v), made before t and read at t or later, that R
//              does not make or that must be there while t runs
//   cost(t)  = sum of c(o), o in R before t whose outputs are read at t or
//   later
//
// and where bytes(t) <= budget, bound(t) <= cost(t). O(ops + arities) per set.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

class WindowCeiling {
 public:
  static constexpr int64_t kUnknown = int64_t{1} << 62;

  WindowCeiling(const Problem& problem, int64_t budget_bytes);

  // Lowers the ceilings by what running these ops again says.
  void Lower(const std::vector<OpId>& recomputed);

  // No schedule set aside by the window at this op costs more.
  int64_t At(OpId at) const { return at_most_[at]; }

 private:
  const Problem& problem_;
  const int64_t budget_bytes_;
  std::vector<OpId> last_trigger_;  // by op: the last one up to it
  std::vector<int64_t> own_bytes_;  // by op: static, workspace, writes
  std::vector<int64_t> at_most_;    // by op
};

}  // namespace reprise::planner
