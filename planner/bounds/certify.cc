// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/certify.h"

#include <algorithm>
#include <bit>

#include "planner/bounds/certify_tree.h"
#include "planner/bounds/window_bound.h"

namespace reprise::planner {
namespace {

constexpr int kMostWindowLeaves = 2000;

// The tree of one window that proves `added_ns`, in preorder.
class WindowTree {
 public:
  WindowTree(WindowBound& window, int64_t budget_bytes, int64_t added_ns,
             const std::function<bool()>& should_stop)
      : window_(window),
        budget_bytes_(budget_bytes),
        added_ns_(added_ns),
        should_stop_(should_stop) {}

  // Returns false if there are too many leaves, it was stopped, or the claim is
  // false.
  bool Grow() {
    if (static_cast<int>(tree_.size()) > kMostWindowLeaves) return false;
    if (!tree_.empty() && should_stop_ && should_stop_()) return false;
    const WindowLeaf leaf = window_.Leaf(budget_bytes_, fixes_);
    if (leaf.impossible || leaf.added_ns >= added_ns_) {
      tree_.push_back(LeafOf(leaf));
      return true;
    }
    if (leaf.branch == kNoValue) return false;
    tree_.push_back({.branch = leaf.branch});
    for (const bool present : {true, false}) {
      fixes_.emplace_back(leaf.branch, present);
      const bool grown = Grow();
      fixes_.pop_back();
      if (!grown) return false;
    }
    return true;
  }

  static verify::Node LeafOf(const WindowLeaf& leaf) {
    // Certificates have no negative shifts: fold one into the price.
    return {.shift = std::max(0, leaf.shift),
            .impossible = leaf.impossible,
            .price = leaf.price << std::max(0, -leaf.shift)};
  }

  std::vector<verify::Node> tree() && { return std::move(tree_); }

 private:
  WindowBound& window_;
  const int64_t budget_bytes_;
  const int64_t added_ns_;
  const std::function<bool()>& should_stop_;
  WindowBound::Fixes fixes_;
  std::vector<verify::Node> tree_;
};

bool Accepted(const verify::Facts& facts,
              const verify::Certificate& certificate) {
  return verify::CheckCertificate(facts, certificate).ok();
}

// Certifies what one window proves, at most `added_ns`.
verify::Certificate CertifyWindow(const Problem& problem, int64_t budget_bytes,
                                  OpId at, int64_t added_ns, bool with_tree,
                                  const CertifyLimits& limits) {
  WindowBound window(problem, at);
  verify::Certificate certificate{.method = verify::Method::kWindow,
                                  .budget_bytes = budget_bytes,
                                  .at = {at}};
  const WindowLeaf root = window.Leaf(budget_bytes, {});
  certificate.added_ns = std::min(added_ns, root.added_ns);
  certificate.tree = {WindowTree::LeafOf(root)};
  if (with_tree && certificate.added_ns < added_ns) {
    WindowTree tree(window, budget_bytes, added_ns, limits.should_stop);
    if (tree.Grow()) {
      certificate.added_ns = added_ns;
      certificate.tree = std::move(tree).tree();
    }
  }
  return certificate;
}

}  // namespace

verify::Executor ExecutorOf(const Capabilities& capabilities) {
  return {.max_runs = capabilities.max_runs,
          .recompute_in_backward_only = capabilities.recompute_in_backward_only,
          .seeded_ok = capabilities.seeded_ok,
          .collective_ok = capabilities.collective_ok,
          .duplicate_outputs = capabilities.duplicate_outputs,
          .program_frees = capabilities.free_policy == FreePolicy::kProgram,
          .ns_per_op = capabilities.ns_per_op};
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
            .tree = source.tree};
    if (Accepted(facts, best)) return best;
    best = {};
  }
  // Each of several windows also proves something alone, without a tree.
  const bool alone = source.windows.size() == 1;
  for (const OpId at : source.windows) {
    verify::Certificate one =
        CertifyWindow(problem, budget_bytes, at, added_ns, alone, limits);
    if (one.added_ns > best.added_ns && Accepted(facts, one)) {
      best = std::move(one);
    }
  }
  if (best.added_ns < added_ns && source.windows.size() > 1 && !source.nested) {
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
