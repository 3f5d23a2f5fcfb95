// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "planner/search/solve.h"

namespace reprise::planner {
namespace {

// In large steps, a window is worth its flows if it may raise the bound by this
// fraction of the base time: a tenth of the target gap.
constexpr int64_t kLeastRiseOfABound = 10'000;

}  // namespace

void CertifyBase(const Problem& problem, int64_t budget_bytes, int64_t ticks,
                 Certificate& certificate, Effort& effort) {
  const int64_t begin = effort.ticks();
  const auto is_worth_it = [&](OpId at) {
    // Small steps can afford windows that prove nothing more: exact windows and
    // runs of windows start from them.
    return problem.op_count <= kMostSmallOps ||
           certificate.MayRise(at, problem.base.time_ns / kLeastRiseOfABound);
  };
  for (const OpId at :
       LocalPeaks(problem.base_bytes, 9, std::max(1, problem.op_count / 64))) {
    if (is_worth_it(at)) certificate.Try(at);
    if (effort.Over()) return;
  }
  // Then ever finer: every 2^k-th op whose memory exceeds the budget.
  int stride = 1;
  while (stride < problem.op_count) stride *= 2;
  for (; stride >= 1; stride /= 2) {
    for (OpId at = 0; at < problem.op_count; at += stride) {
      if (problem.base_bytes[at] <= budget_bytes) continue;
      if (effort.ticks() - begin > ticks || effort.Over()) return;
      if (is_worth_it(at)) certificate.Try(at);
    }
  }
}

Infeasible ProveMore(const Problem& problem, Infeasible infeasible,
                     int64_t ticks, Effort& effort) {
  // What rules out a budget often rules out the next larger one as well, so
  // repeat with the smallest that is left.
  constexpr int kMostRounds = 8;
  const int64_t begin = effort.ticks();
  for (int round = 0; round < kMostRounds; ++round) {
    const int64_t left = ticks - (effort.ticks() - begin);
    if (left <= 0 || effort.Over()) break;
    Certificate certificate(problem, infeasible.smallest_budget_bytes, effort);
    CertifyBase(problem, infeasible.smallest_budget_bytes, left / 4,
                certificate, effort);
    if (!certificate.impossible()) certificate.TryPebbling(left / 4);
    if (!certificate.impossible()) break;
    infeasible = certificate.infeasible();
  }
  return infeasible;
}

}  // namespace reprise::planner
