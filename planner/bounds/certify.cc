// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/certify.h"

#include <algorithm>
#include <bit>

#include "planner/bounds/certify_tree.h"
#include "planner/bounds/window_bound.h"

namespace reprise::planner {
namespace {

bool Accepted(const verify::Facts& facts,
              const verify::Certificate& certificate) {
  return verify::CheckCertificate(facts, certificate).ok();
}

// Certifies what one window's price proves, at most `added_ns`.
verify::Certificate CertifyWindow(const Problem& problem, int64_t budget_bytes,
                                  OpId at, int64_t added_ns) {
  const WindowResult proven = WindowBound(problem, at).Solve(budget_bytes);
  // Certificates have no negative shifts: one is folded into the price.
  const auto [price, shift] = proven.price;
  return {.method = verify::Method::kWindow,
          .budget_bytes = budget_bytes,
          .added_ns = std::min(added_ns, proven.added_ns),
          .at = {at},
          .tree = {{.shift = std::max(0, shift),
                    .price = price << std::max(0, -shift)}}};
}

}  // namespace

verify::Executor ExecutorOf(const Capabilities& capabilities) {
  return {.max_runs = capabilities.max_runs,
          .recompute_in_backward_only = capabilities.recompute_in_backward_only,
          .seeded_ok = capabilities.seeded_ok,
          .collective_ok = capabilities.collective_ok,
          .duplicate_outputs = capabilities.duplicate_outputs,
          .program_frees = capabilities.free_policy == FreePolicy::kProgram,
          .ns_per_op = capabilities.ns_per_op,
          .link = capabilities.link};
}

verify::Certificate CertifyBound(const Problem& problem,
                                 const verify::Facts& facts,
                                 int64_t budget_bytes,
                                 const ProofSource& source, int64_t added_ns,
                                 const CertifyLimits& limits) {
  verify::Certificate best;
  if (!source.tree.empty()) {
    best = {.method = source.nested ? verify::Method::kNested
                                    : verify::Method::kWindows,
            .budget_bytes = budget_bytes,
            .added_ns = added_ns,
            .at = source.windows,
            .inside = source.inside,
            .inside_rows = source.inside_rows,
            .tree = source.tree};
    if (Accepted(facts, best)) return best;
    best = {};
  }
  // Each window also proves something by its price alone.
  for (const OpId at : source.windows) {
    verify::Certificate one =
        CertifyWindow(problem, budget_bytes, at, added_ns);
    if (one.added_ns > best.added_ns && Accepted(facts, one)) {
      best = std::move(one);
    }
  }
  if (best.added_ns < added_ns && !source.nested) {
    verify::Certificate all =
        CertifyProgram(facts, budget_bytes, source, added_ns, limits);
    if (all.added_ns > best.added_ns && Accepted(facts, all)) {
      best = std::move(all);
    }
  }
  return best;
}

verify::Certificate CertifyRefusal(const verify::Facts& facts,
                                   int64_t budget_bytes,
                                   const Infeasible& infeasible,
                                   const CertifyLimits& limits) {
  verify::Certificate certificate{
      .refuses = true,
      .budget_bytes = budget_bytes,
      .least_bytes = infeasible.smallest_budget_bytes};
  if (infeasible.blocking_op == kNoOp) return {};
  if (infeasible.windows.size() > 1) {
    certificate = CertifyImpossible(
        facts, infeasible.smallest_budget_bytes,
        {.windows = infeasible.windows, .inside = infeasible.inside}, limits);
    certificate.budget_bytes = budget_bytes;
    if (Accepted(facts, certificate)) return certificate;
    return {};
  }
  certificate.at = {infeasible.blocking_op};
  for (const verify::Method method :
       {verify::Method::kWorkingSet, verify::Method::kWindow,
        verify::Method::kChain}) {
    certificate.method = method;
    if (Accepted(facts, certificate)) return certificate;
  }
  return {};
}

}  // namespace reprise::planner
