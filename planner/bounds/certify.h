// SPDX-License-Identifier: Apache-2.0
//
// Certificates for what a search has proven (verify/certificate.h), for the
// original graph: the search of a reduced graph names windows of the original,
// and the certificate is made there, so it does not depend on the reduction.
//
//   one window        the price of its minimum cuts; if the bound is from
//                     branch and bound, the same tree again, with the bound to
//                     reach known from the beginning
//   several windows   the verifier's own program (verify/program.h): its linear
//                     relaxation, and a tree of relaxations whose multipliers
//                     become the leaves. The solver proposes multipliers, and
//                     the verifier evaluates them
//   nested windows    the prices of their minimum cut
//   a refusal         the working set of an op, its window, or all ways back
//                     from it
//
// Every certificate returned was accepted by the verifier. If making one is
// interrupted, there is none, and nothing is claimed.
#pragma once

#include <functional>
#include <vector>

#include "planner/model/plan.h"
#include "planner/model/problem.h"
#include "planner/verify/verify.h"

namespace reprise::planner {

// The windows that prove a bound.
struct ProofSource {
  std::vector<OpId> windows = {};  // ascending; several: many_windows.h
  bool inside = false;             // includes memory inside segments
  bool nested = false;             // several: nested_windows.h
  // The tree that proves it, if the search has grown one; of nested windows, the
  // leaf with their prices, which also holds for the graph before a reduction.
  std::vector<verify::Node> tree = {};
};

struct CertifyLimits {
  int most_leaves = 4000;
  int64_t most_iterations = 200'000;  // of simplex
  std::function<bool()> should_stop = {};
  Exchange* exchange = nullptr;  // its threads may help
};

// Returns the part of the capabilities that certificates depend on.
verify::Executor ExecutorOf(const Capabilities& capabilities);

// Certifies as much of `added_ns` as possible, at least what the best of the
// windows proves alone. Returns method kNone if nothing could be certified.
verify::Certificate CertifyBound(const Problem& problem,
                                 const verify::Facts& facts,
                                 int64_t budget_bytes,
                                 const ProofSource& source, int64_t added_ns,
                                 const CertifyLimits& limits);

// Certifies that nothing fits in less than the smallest budget of `infeasible`,
// which its blocking op needs. Returns method kNone if that failed.
verify::Certificate CertifyRefusal(const verify::Facts& facts,
                                   int64_t budget_bytes,
                                   const Infeasible& infeasible,
                                   const CertifyLimits& limits);

}  // namespace reprise::planner
