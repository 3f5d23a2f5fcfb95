// SPDX-License-Identifier: Apache-2.0
//
// Tries to prove that the best plan is optimal: chooses the windows that a tree
// needs, one by one, and finds the optimum of these windows.
#include <algorithm>
#include <limits>
#include <utility>

#include "planner/bounds/certificate.h"
#include "planner/bounds/lp.h"
#include "planner/verify/program.h"

namespace reprise::planner {
namespace {

constexpr size_t kMostRefuting = 8;
// Larger programs are not started.
constexpr int kMostColumns = 20'000;
// The first tree gets 1/kTree of the ticks for an optimum. A refutation gets
// 1/kTree of its ticks before the optimum is looked for.
constexpr int64_t kTree = 3;

}  // namespace

Refuter* Certificate::RefuterOf(const std::vector<OpId>& windows, bool inside) {
  if (!facts_) {
    auto facts =
        verify::ReadFacts(*problem_.graph, ExecutorOf(problem_.capabilities));
    if (!facts.ok()) return nullptr;
    facts_.emplace(*std::move(facts));
  }
  if (refuter_ == nullptr || refuter_->windows() != windows ||
      refuter_->inside() != inside) {
    refuter_ = std::make_unique<Refuter>(problem_, *facts_, budget_bytes_,
                                         windows, inside);
  }
  return refuter_->columns() <= kMostColumns ? refuter_.get() : nullptr;
}

Refutation Certificate::RefuteBy(const std::vector<OpId>& windows, bool inside,
                                 int64_t added_ns, How how, int64_t ticks) {
  Refuter* refuter = RefuterOf(windows, inside);
  if (refuter == nullptr) return {};
  const int64_t rows =
      static_cast<int64_t>(windows.size()) * 2 * problem_.op_count;
  CertifyLimits limits{.most_leaves = static_cast<int>(std::clamp<int64_t>(
                           ticks / Refuter::SolveTicks(rows), 1, 100'000)),
                       .most_iterations = std::max<int64_t>(
                           1, ticks / Refuter::IterationTicks(rows)),
                       .root_only = how == How::kRoot};
  limits.should_stop = [this] { return effort_.StopNow(); };
  limits.exchange = exchange_;
  Refutation found = refuter->Cheaper(added_ns, how == How::kOptimum, limits);
  effort_.Spend(problem_.op_count +
                found.solves * Refuter::SolveTicks(found.rows) +
                found.iterations * Refuter::IterationTicks(found.rows));
  const TreeProof& proof = found.is_proven() ? found.proof : found.root;
  if (proof.added_ns == verify::Program::kNothing) {
    // This proves the budget impossible; a larger smallest budget may be known
    // already.
    Prove(windows.front(), budget_bytes_ + 1, {});
    if (infeasible_.smallest_budget_bytes == budget_bytes_ + 1) {
      infeasible_.windows = windows;
      infeasible_.inside = inside;
    }
    return found;
  }
  ProofSource source{.windows = windows,
                     .inside = inside,
                     .inside_rows = proof.inside_rows,
                     .tree = proof.tree};
  if (proof.added_ns == added_ns_ && source_.windows == windows &&
      source_.inside == inside) {
    source_ = std::move(source);
  }
  Raise(proof.added_ns, std::move(source));
  return found;
}

// A tree whose bound is above the optimum grows large before it finds a good
// solution; one whose bound is below is soon refuted. So the bound is a guess:
// raised when it is refuted, lowered when its tree takes too long.
Refutation Certificate::OptimumOf(const std::vector<OpId>& windows,
                                  int64_t incumbent_ns, int64_t low_ns,
                                  int64_t ticks) {
  const int64_t begin = effort_.ticks();
  low_ns = std::max(low_ns, added_ns_);
  int64_t high_ns = incumbent_ns, tree_ticks = ticks / kTree;
  int64_t step_ns = (high_ns - low_ns) / guess_parts_;
  Refutation best;
  while (!effort_.Over()) {
    const int64_t left = ticks - (effort_.ticks() - begin);
    if (left <= 0) break;
    step_ns = std::max<int64_t>(1, step_ns);
    const int64_t guess_ns = std::min(high_ns, low_ns + step_ns);
    Refutation found = RefuteBy(windows, /*inside=*/false, guess_ns,
                                How::kOptimum, std::min(left, tree_ticks));
    const bool proven = found.is_proven();
    if (!found.keep_sets.empty()) {
      best = std::move(found);
      if (proven) break;
      high_ns = best.added_ns;
      step_ns = (high_ns - low_ns) / guess_parts_;
      tree_ticks *= 2;
    } else if (proven) {
      low_ns = guess_ns;
      if (guess_ns < high_ns) continue;
      best.outcome = found.outcome;
      break;
    } else {
      if (tree_ticks >= left) break;
      step_ns /= 2;
      tree_ticks *= 2;
    }
  }
  return best;
}

void Certificate::Refute(int64_t incumbent_ns, int64_t ticks,
                         const PeaksOf& peaks_of) {
  if (!HasLpSolver() || tried_.empty()) return;
  if (together_is_large_ && together_.size() > refuting_.size()) {
    // A tree over few windows proves less than the LP of those of Combine.
    if (!together_grows_) GrowTogether(incumbent_ns, ticks, peaks_of);
    return;
  }
  if (incumbent_ns == refuted_ns_) return;
  const int64_t begin = effort_.ticks();
  if (refuting_.empty()) refuting_ = {TriedByBound().front()};
  // Set once these windows prove almost everything: then their optimum is
  // found.
  bool to_optimum = false;
  int64_t root_ns = 0;
  while (refuting_.size() <= kMostRefuting) {
    const int64_t left = ticks - (effort_.ticks() - begin);
    const int64_t kept = to_optimum ? 0 : ticks / kTree * (kTree - 1);
    if (left <= kept || effort_.Over()) return;
    refuted_ns_ = incumbent_ns;
    std::vector<OpId> windows = refuting_;
    std::sort(windows.begin(), windows.end());
    const Refutation found =
        to_optimum ? OptimumOf(windows, incumbent_ns, root_ns, left)
                   : RefuteBy(windows, /*inside=*/false, incumbent_ns,
                              How::kCheaper, left - kept);
    if (found.keep_sets.empty()) {
      const bool is_stopped = found.outcome == Refutation::Outcome::kStopped;
      if (!is_stopped || to_optimum || refuting_.size() < 2) return;
      // A tree over one more window is too large: find the optimum without it.
      refuting_.pop_back();
      to_optimum = true;
      continue;
    }
    root_ns = std::max(root_ns, found.root.added_ns);
    const bool is_optimum = found.is_proven();
    const std::vector<OpId> lacks = peaks_of(found.keep_sets, incumbent_ns);
    if (is_optimum) {
      // Combine continues from here.
      together_ = windows;
      together_order_ = refuting_;
      together_ns_ = found.root.added_ns;
      together_finished_ = true;
      together_lacks_ = lacks;
      together_scanned_.clear();
    }
    if (incumbent_ns < refuted_ns_) {
      is_near_ = is_optimum;
      if (is_optimum) return;
      to_optimum = true;
      continue;
    }
    // Of the windows that are missing, choose the one that raises the LP most.
    OpId chosen = kNoOp;
    int64_t chosen_ns = -1;
    for (const OpId at : lacks) {
      if (std::binary_search(windows.begin(), windows.end(), at)) continue;
      std::vector<OpId> more = windows;
      more.insert(std::upper_bound(more.begin(), more.end(), at), at);
      const int64_t added_ns =
          RelaxTogether(more, std::numeric_limits<int64_t>::max()).value_or(0);
      if (added_ns <= chosen_ns) continue;
      chosen_ns = added_ns;
      chosen = at;
    }
    if (chosen == kNoOp) {
      is_near_ = is_optimum;
      if (to_optimum) return;
      to_optimum = true;
      continue;
    }
    to_optimum = false;
    refuting_.push_back(chosen);
    if (!together_.empty() || refuting_.size() != 2) continue;
    // Combine will start with these windows.
    together_ = together_order_ = refuting_;
    std::sort(together_.begin(), together_.end());
    together_ns_ = chosen_ns;
  }
}

}  // namespace reprise::planner
