// SPDX-License-Identifier: Apache-2.0
//
// Certificates for what a search has proven (verify/certificate.h), on the
// graph as it was asked about: a search of a reduced graph names windows of the
// original, and the certificate is made there, so that no reduction needs to be
// believed.
//
//   one window        the price of its minimum cuts; where the bound is of
//                     branch and bound, the same tree again, with the bound to
//                     reach known from the beginning
//   several windows   the verifier's own program (verify/program.h): its linear
//                     relaxation, and a tree of them, whose multipliers become
//                     the leaves. The solver proposes them, the verifier
//                     evaluates them
//   a refusal         the working set of an op, its window, or all ways back
//                     from it
//
// What is returned was accepted by the verifier. An interruption ends the
// making of a certificate without one: it then proves nothing.
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
  bool inside = false;             // with memory inside segments
  // The tree that proves it, where the search has grown one.
  std::vector<verify::Node> tree = {};
};

struct CertifyLimits {
  int most_leaves = 4000;
  int64_t most_iterations = 200'000;  // of simplex
  std::function<bool()> should_stop = {};
  Exchange* exchange = nullptr;  // of searches whose threads may help
};

verify::Executor ExecutorOf(const Capabilities& capabilities);

// Claims as much of `added_ns` as could be certified; at least what the best of
// the windows proves alone. Method kNone where nothing could.
verify::Certificate CertifyBound(const Problem& problem,
                                 const verify::Facts& facts,
                                 int64_t budget_bytes,
                                 const ProofSource& source, int64_t added_ns,
                                 const CertifyLimits& limits);

// That nothing fits in less than `least_bytes`, which `at` needs; method kNone
// where it could not be certified.
verify::Certificate CertifyRefusal(const verify::Facts& facts,
                                   int64_t budget_bytes,
                                   const Infeasible& infeasible,
                                   const CertifyLimits& limits);

}  // namespace reprise::planner
