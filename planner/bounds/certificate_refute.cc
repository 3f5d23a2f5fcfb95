// SPDX-License-Identifier: Apache-2.0
//
// Tries to prove that the best plan is optimal: chooses the windows that a tree
// needs, one by one, and finds the optimum of these windows.
#include <algorithm>
#include <utility>

#include "planner/bounds/certificate.h"

namespace reprise::planner {
namespace {

constexpr size_t kMostRefuting = 8;
// The first tree gets 1/kTree of the ticks for an optimum. A refutation gets
// 1/kTree of its ticks before the optimum is looked for.
constexpr int64_t kTree = 3;

}  // namespace

Refutation Certificate::RefuteBy(const std::vector<OpId>& windows,
                                 int64_t added_ns, bool to_optimum,
                                 int64_t ticks) {
  if (!facts_) {
    auto facts =
        verify::ReadFacts(*problem_.graph, ExecutorOf(problem_.capabilities));
    if (!facts.ok()) return {};
    facts_.emplace(*std::move(facts));
  }
  // Costs of linear programs and their iterations in ticks, as measured.
  const auto per_solve = [](int64_t rows) { return 1000 + 25 * rows; };
  const auto per_iteration = [](int64_t rows) { return 500 + rows / 2; };
  const int64_t rows =
      static_cast<int64_t>(windows.size()) * 2 * problem_.op_count;
  CertifyLimits limits{
      .most_leaves = static_cast<int>(
          std::clamp<int64_t>(ticks / per_solve(rows), 1, 100'000)),
      .most_iterations = std::max<int64_t>(1, ticks / per_iteration(rows))};
  limits.should_stop = [this] { return effort_.StopNow(); };
  limits.exchange = exchange_;
  if (refuter_ == nullptr || refuter_->windows() != windows) {
    refuter_ =
        std::make_unique<Refuter>(problem_, *facts_, budget_bytes_, windows);
  }
  Refutation found = refuter_->Cheaper(added_ns, to_optimum, limits);
  effort_.Spend(problem_.op_count + found.solves * per_solve(found.rows) +
                found.iterations * per_iteration(found.rows));
  if (found.outcome != Refutation::Outcome::kProven) return found;
  ProofSource source{.windows = windows, .tree = std::move(found.tree)};
  if (found.added_ns == added_ns_ && source_.windows == windows &&
      !source_.inside) {
    source_ = std::move(source);
  }
  Raise(found.added_ns, std::move(source));
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
    Refutation found =
        RefuteBy(windows, guess_ns, true, std::min(left, tree_ticks));
    const bool proven = found.outcome == Refutation::Outcome::kProven;
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
  if (!MipAvailable() || tried_.empty()) return;
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
                   : RefuteBy(windows, incumbent_ns, false, left - kept);
    if (found.keep_sets.empty()) {
      const bool is_stopped = found.outcome == Refutation::Outcome::kStopped;
      if (!is_stopped || to_optimum || refuting_.size() < 2) return;
      // A tree over one more window is too large: find the optimum without it.
      refuting_.pop_back();
      to_optimum = true;
      continue;
    }
    root_ns = std::max(root_ns, found.root_ns);
    const bool is_optimum = found.outcome == Refutation::Outcome::kProven;
    const std::vector<OpId> lacks = peaks_of(found.keep_sets, incumbent_ns);
    if (is_optimum) {
      // Combine continues from here.
      together_ = windows;
      together_order_ = refuting_;
      together_ns_ = found.root_ns;
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
          SolveTogether(more, incumbent_ns, 0, How::kRelaxed).added_ns;
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
