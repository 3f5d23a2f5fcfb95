// SPDX-License-Identifier: Apache-2.0
//
// Certificates for what a search has proven (model/certificate.h), for the
// original graph: the search of a reduced graph names windows of the original,
// and the certificate is made there, so it does not depend on the reduction.
//
//   one window        the price of its minimum cuts
//   several, or a     the verifier's own program (verify/program.h): its linear
//   tree over one     relaxation, and a tree of relaxations whose multipliers
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

// What a tree over the program of several windows proves (verify/program.h).
struct TreeProof {
  int64_t added_ns = 0;
  std::vector<verify::Node> tree = {};
  std::vector<verify::InsideRow> inside_rows = {};  // that it refers to
};

// The windows that prove a bound.
struct ProofSource {
  std::vector<OpId> windows = {};  // ascending; several: verify/program.h
  bool inside = false;             // includes memory inside segments
  std::vector<verify::InsideRow> inside_rows = {};  // of the tree
  bool nested = false;                              // several: nested_windows.h
  // The tree that proves it, if the search has grown one; of nested windows, the
  // leaf with their prices, which also holds for the graph before a reduction.
  std::vector<verify::Node> tree = {};
};

struct CertifyLimits {
  int most_leaves = 4000;
  int64_t most_iterations = 200'000;  // of simplex
  bool root_only = false;             // no branchings: a smaller bound, sooner
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
