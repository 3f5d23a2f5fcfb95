// SPDX-License-Identifier: Apache-2.0
//
// Bounds of several windows: chooses the windows and the effort for each set.
#include <algorithm>
#include <limits>

#include "planner/bounds/certificate.h"
#include "planner/bounds/lp.h"
#include "planner/bounds/nested_windows.h"
#include "planner/verify/program.h"

namespace reprise::planner {
namespace {

constexpr int kMostCandidates = 20;
constexpr int kSpread = 60;
constexpr size_t kMostTogether = 16;
constexpr size_t kMostPairs = 6;
constexpr int kLongestRun = 16;
// Of a program too large for its optimum: a tree is grown instead of adding a
// window that raises the LP by less than this part of the way to the best plan.
constexpr int64_t kRiseParts = 32;
constexpr size_t kMostNested = 3;

}  // namespace

// Returns the local peaks of the base order above the budget, highest first.
// Neighbours of a peak prove the same as the peak itself.
std::vector<OpId> Certificate::Candidates() const {
  const int apart = problem_.op_count / kSpread;
  std::vector<OpId> candidates;
  for (const OpId at :
       LocalPeaks(problem_.base_bytes, kMostCandidates, apart)) {
    if (problem_.base_bytes[at] > budget_bytes_) candidates.push_back(at);
  }
  return candidates;
}

std::optional<int64_t> Certificate::RelaxTogether(
    const std::vector<OpId>& windows, int64_t ticks) {
  // The refuter of other windows stays: it is asked again.
  std::unique_ptr<Refuter> last = std::move(refuter_);
  std::optional<int64_t> added_ns;
  const Refuter* refuter = RefuterOf(windows, /*inside=*/false);
  if (refuter != nullptr && refuter->RootTicks() <= ticks) {
    added_ns = RefuteBy(windows, /*inside=*/false, verify::Program::kNothing,
                        How::kRoot, std::numeric_limits<int64_t>::max())
                   .proven_ns();
  }
  refuter_ = std::move(last);
  return added_ns;
}

Refutation Certificate::SolveTogether(const std::vector<OpId>& windows,
                                      bool inside, int64_t incumbent_ns,
                                      int64_t ticks) {
  Refuter* refuter = RefuterOf(windows, inside);
  if (refuter == nullptr) return {};
  // Rows inside segments need at least a second tree.
  if (refuter->LeastTicks() > ticks / (inside ? 2 : 1)) return {};
  return RefuteBy(windows, inside,
                  incumbent_ns < 0 ? verify::Program::kNothing : incumbent_ns,
                  How::kOptimum, ticks);
}

// Just after a peak, re-runs have the least room, because what stays from one
// window to the next op is present while they run. Tries pairs first, then
// longer runs around the best pairs.
void Certificate::CombineNeighbours(int64_t incumbent_ns, int64_t ticks,
                                    const PeaksOf& peaks_of) {
  const int64_t begin = effort_.ticks();
  std::vector<OpId> order = TriedByBound();
  std::erase_if(order, [&](OpId at) {
    return at + 1 >= problem_.op_count || tried_[at].added_ns <= 0;
  });
  if (order.size() > kMostPairs) order.resize(kMostPairs);
  for (int length = 2; length <= kLongestRun; length *= 2) {
    for (const OpId at : order) {
      const int64_t left = ticks - (effort_.ticks() - begin);
      if (left <= 0 || effort_.Over() || impossible()) return;
      if (incumbent_ns >= 0 && IsProven(problem_, incumbent_ns, added_ns_)) {
        return;
      }
      if (run_length_[at] >= length) continue;
      std::vector<OpId> windows;
      const OpId first = std::max(0, at - (length / 2 - 1));
      for (OpId o = first; o <= at + length / 2 && o < problem_.op_count; ++o) {
        windows.push_back(o);
      }
      const Refutation found =
          SolveTogether(windows, /*inside=*/true, incumbent_ns, left / 2);
      if (found.rows == 0) continue;
      run_length_[at] = length;
      run_ns_[at] = std::max(run_ns_[at], found.proven_ns());
      if (!found.keep_sets.empty()) peaks_of(found.keep_sets, incumbent_ns);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](OpId a, OpId b) { return run_ns_[a] > run_ns_[b]; });
    if (order.size() > 1) order.erase(order.begin() + 1, order.end());
  }
}

void Certificate::Extend(const std::vector<OpId>& touched,
                         std::vector<OpId>& proposals) const {
  proposals.insert(proposals.end(), touched.begin(), touched.end());
  std::sort(proposals.begin(), proposals.end());
  proposals.erase(std::unique(proposals.begin(), proposals.end()),
                  proposals.end());
  std::stable_sort(proposals.begin(), proposals.end(),
                   [&](OpId a, OpId b) { return LastRise(a) > LastRise(b); });
}

bool Certificate::GrowTogether(int64_t incumbent_ns, int64_t ticks,
                               const PeaksOf& peaks_of) {
  const int64_t before_ns = added_ns_;
  const Refutation found =
      OptimumOf(together_, incumbent_ns, together_ns_, ticks);
  if (added_ns_ == before_ns) guess_parts_ *= 2;
  if (found.keep_sets.empty()) return false;
  together_lacks_ = peaks_of(found.keep_sets, incumbent_ns);
  std::erase_if(together_lacks_, [&](OpId at) { return IsTogether(at); });
  return !together_lacks_.empty();
}

void Certificate::Combine(int64_t incumbent_ns, int64_t ticks,
                          const PeaksOf& peaks_of,
                          const std::vector<OpId>& touched) {
  if (!HasLpSolver() || tried_.empty() || impossible()) return;
  const int64_t begin = effort_.ticks();
  const auto left = [&] { return ticks - (effort_.ticks() - begin); };
  const auto enough = [&] {
    return effort_.Over() || impossible() || left() <= 0 ||
           (incumbent_ns >= 0 && IsProven(problem_, incumbent_ns, added_ns_));
  };
  if (together_.empty()) {
    // Cuts solve the relaxations of single windows.
    for (const OpId at : Candidates()) {
      if (!enough()) Try(at);
    }
    together_ = together_order_ = {TriedByBound().front()};
    together_ns_ = tried_.at(together_.front()).added_ns;
    for (const auto& [at, window] : tried_) {
      together_rise_[at] = window.added_ns;
    }
  }
  CombineNeighbours(incumbent_ns, ticks / 2, peaks_of);
  while (!enough()) {
    std::vector<OpId> proposals = together_lacks_;
    const int64_t share = left() * 3 / 4;
    if (!together_finished_ && together_ticks_ < share) {
      together_ticks_ = share;
      const Refutation found =
          SolveTogether(together_, /*inside=*/false, incumbent_ns, share);
      together_finished_ = found.is_proven();
      together_is_large_ = found.rows == 0;
      if (!found.keep_sets.empty()) {
        proposals = together_lacks_ = peaks_of(found.keep_sets, incumbent_ns);
        // No place is known where its schedule exceeds the budget. The caller
        // may find a schedule near it sooner than another window is found here.
        if (together_finished_ && proposals.empty()) break;
      }
    }
    if (together_.size() >= kMostTogether || enough()) break;
    // If the solution exceeds the budget somewhere, a window is missing there;
    // otherwise try the candidate that raises the LP most.
    std::erase_if(proposals, [&](OpId at) { return IsTogether(at); });
    const bool lacks = !proposals.empty();
    if (!lacks) {
      if (!together_grows_) {
        if (together_is_large_ && incumbent_ns >= 0 &&
            GrowTogether(incumbent_ns, left(), peaks_of)) {
          continue;
        }
        break;
      }
      proposals = Candidates();
      if (together_is_large_) Extend(touched, proposals);
    }
    OpId chosen = lacks ? proposals.front() : kNoOp;
    int64_t chosen_ns = together_ns_;
    bool all = true, is_skipped = false;
    for (const OpId at : proposals) {
      if (IsTogether(at)) continue;
      if (!lacks && together_is_large_ && chosen != kNoOp &&
          LastRise(at) <= chosen_ns - together_ns_) {
        break;
      }
      // A scan that ran out of ticks continues where it ended.
      const auto [scanned, fresh] = together_scanned_.try_emplace(at, 0);
      if (fresh) {
        std::vector<OpId> windows = together_;
        windows.insert(std::upper_bound(windows.begin(), windows.end(), at),
                       at);
        all = !enough();
        const auto added_ns =
            all ? RelaxTogether(windows, 2 * ticks) : std::nullopt;
        if (!added_ns.has_value()) {
          // A later call has more ticks.
          together_scanned_.erase(scanned);
          is_skipped = true;
          if (!all) break;
          continue;
        }
        scanned->second = *added_ns;
      }
      if (scanned->second <= chosen_ns) continue;
      chosen_ns = scanned->second;
      chosen = at;
    }
    if (!all || (chosen == kNoOp && is_skipped)) break;
    for (const auto& [at, added_ns] : together_scanned_) {
      together_rise_[at] = added_ns - together_ns_;
    }
    const bool small_rise =
        !lacks && together_is_large_ && incumbent_ns >= 0 &&
        chosen_ns - together_ns_ < (incumbent_ns - together_ns_) / kRiseParts;
    if (chosen == kNoOp || small_rise) {
      together_grows_ = false;
      continue;
    }
    together_.insert(
        std::upper_bound(together_.begin(), together_.end(), chosen), chosen);
    together_order_.push_back(chosen);
    together_scanned_.clear();
    together_ns_ = chosen_ns;
    together_ticks_ = 0;
    together_finished_ = false;
    together_lacks_.clear();
  }
}

void Certificate::Nest(const std::vector<OpId>& touched, int64_t ticks) {
  if (!HasLpSolver() || tried_.empty() || impossible()) return;
  const int64_t begin = effort_.ticks();
  if (nested_.empty()) nested_ = {TriedByBound().front()};
  const WindowResult& single = tried_.at(TriedByBound().front());
  if (!single.has_rich_set) return;
  while (nested_.size() < kMostNested) {
    for (const OpId at : touched) {
      // A later call continues.
      if (effort_.Over() || effort_.ticks() - begin > ticks) return;
      std::vector<OpId> windows = nested_;
      const auto place = std::lower_bound(windows.begin(), windows.end(), at);
      if (place != windows.end() && *place == at) continue;
      windows.insert(place, at);
      if (!nest_tried_.insert(at).second) continue;
      NestedWindows nested(problem_, windows);
      const NestedWindows::Proof proof = nested.Solve(
          budget_bytes_, PriceOf(single) / 2, ticks, effort_.should_stop());
      effort_.Spend(nested.ticks());
      Raise(proof.added_ns,
            {.windows = windows,
             .nested = true,
             .tree = {{.shift = proof.shift, .multipliers = proof.prices}}});
    }
    if (!source_.nested || source_.windows.size() <= nested_.size()) return;
    nested_ = source_.windows;
    nest_tried_.clear();
  }
}

}  // namespace reprise::planner
