// SPDX-License-Identifier: Apache-2.0
//
// The certificate of one budget: the best bound over the windows tried so far,
// or the proof that nothing fits. Windows keep their networks, so solving one
// again for another budget costs only its max-flows.
//
// What has been proven stays proven however the effort ends: every method
// contributes only what its header says survives an interruption
// (window_bound.h, pebble.h, certify_tree.h), and a method that has not begun
// contributes nothing.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "planner/bounds/certify.h"
#include "planner/bounds/certify_tree.h"
#include "planner/bounds/window_bound.h"
#include "planner/bounds/window_ceiling.h"
#include "planner/model/effort.h"
#include "planner/model/plan.h"
#include "planner/model/score.h"

namespace reprise::planner {

// IsProven of plan.h, for a problem.
bool IsProven(const Problem& problem, int64_t added_ns, int64_t bound_ns);

class Certificate {
 public:
  // If there is an exchange, its threads help to grow trees.
  Certificate(const Problem& problem, int64_t budget_bytes, Effort& effort,
              Exchange* exchange = nullptr);

  // Solves the window at an op for the budget; only the first time.
  void Try(OpId at);
  // Solves several windows together (verify/program.h), in builds with Clp. The
  // set of windows grows one by one: by a window where the schedule made from the
  // last solution exceeds the budget (`peaks_of` makes it and returns these
  // places, highest first; nothing if it fits or cannot be made), otherwise by
  // the candidate that raises the LP most. Solutions that add `incumbent_ns` (the
  // best known plan; negative: none) or more are not of interest. Where that
  // program is too large for the ticks, candidates are also the `touched` ops, at
  // which the best plan uses all its memory, and once the LP hardly rises, a tree
  // is grown (OptimumOf). Begins with runs of neighbouring windows, including the
  // memory inside their segments. A later call with more ticks continues.
  using PeaksOf = std::function<std::vector<OpId>(
      const std::vector<KeepSet>& keep_sets, int64_t& incumbent_ns)>;
  void Combine(int64_t incumbent_ns, int64_t ticks, const PeaksOf& peaks_of,
               const std::vector<OpId>& touched);
  // Tries to prove that the best known plan is optimal, by a tree over few
  // windows whose target is known (Refuter). Begins with the best window; if a
  // solution that adds less exceeds the budget, its peak is the next window.
  // Usually ends quickly, with or without a proof. A later call with another
  // plan continues.
  void Refute(int64_t incumbent_ns, int64_t ticks, const PeaksOf& peaks_of);
  // Solves the best window together with those `touched` that raise the bound
  // most (nested_windows.h), for steps in which programs of several windows are
  // too large.
  void Nest(const std::vector<OpId>& touched, int64_t ticks);
  // Looks further back from the ops with the largest working sets, for a proof
  // that the budget is impossible (pebble.h).
  void TryPebbling(int64_t ticks);
  // Solves the window for a smaller budget to get its keep-set; proves nothing.
  // These values are always saved; for `priced`, see WindowBound::SolveSaving.
  WindowResult KeepSetFor(OpId at, int64_t budget_bytes,
                          const std::vector<ValueId>& saved = {},
                          const std::vector<int64_t>& priced = {});

  // Returns whether the window at an op may raise the proven bound by more than
  // `rise_ns`. Windows similar to one that is solved are known not to.
  bool MayRise(OpId at, int64_t rise_ns) const {
    return ceiling_.At(at) - added_ns_ > rise_ns;
  }

  // True if windows of Nest prove more than each alone, by a hundredth at least.
  bool is_nested() const {
    return source_.nested && tried_.at(TriedByBound().front()).added_ns <
                                 added_ns_ - added_ns_ / 100;
  }
  // True if Refute found the optimum of its windows and no place where its
  // schedule exceeds the budget: schedules near that optimum are worth trying.
  bool is_near() const { return is_near_; }

  // Proven: every schedule adds at least this much time.
  int64_t added_ns() const { return added_ns_; }
  // The windows that prove it.
  const ProofSource& source() const { return source_; }
  // True if the budget is proven impossible.
  bool impossible() const {
    return infeasible_.smallest_budget_bytes > budget_bytes_;
  }
  // The smallest budget not ruled out, and the op that rules out less.
  const Infeasible& infeasible() const { return infeasible_; }
  // The windows tried so far, best bound first.
  std::vector<OpId> TriedByBound() const;
  // The result of every window tried so far, by op.
  const std::map<OpId, WindowResult>& tried() const { return tried_; }

 private:
  // What a refuter is asked for: the linear relaxation; the first solution that
  // adds less, or the proof that there is none; the optimum.
  enum class How { kRoot, kCheaper, kOptimum };

  // Returns the window at an op, building it if it is not kept.
  WindowBound& At(OpId at);
  // Returns the local peaks of the base order above the budget, highest first.
  std::vector<OpId> Candidates() const;
  // Returns the refuter of these windows, built unless it is the last one;
  // null if its program is too large.
  Refuter* RefuterOf(const std::vector<OpId>& windows, bool inside);
  // Asks the refuter of these windows whether nothing adds less than
  // `added_ns`, within `ticks`, and raises the proven bound by its answer.
  Refutation RefuteBy(const std::vector<OpId>& windows, bool inside,
                      int64_t added_ns, How how, int64_t ticks);
  // Returns the cheapest solution of these windows below the incumbent; none
  // costs less than `low_ns`. kProven if it is proven optimal, or if it is
  // proven that there is none.
  Refutation OptimumOf(const std::vector<OpId>& windows, int64_t incumbent_ns,
                       int64_t low_ns, int64_t ticks);
  // For Combine, if its program is too large: adds `touched` to its candidates, those
  // that raised the LP most first; by how much one did when tried last; finds
  // the optimum of the windows, and returns whether that lacks windows.
  void Extend(const std::vector<OpId>& touched,
              std::vector<OpId>& proposals) const;
  int64_t LastRise(OpId at) const {
    const auto rise = together_rise_.find(at);
    return rise == together_rise_.end() ? Score::kWorst : rise->second;
  }
  bool GrowTogether(int64_t incumbent_ns, int64_t ticks,
                    const PeaksOf& peaks_of);
  bool IsTogether(OpId at) const {
    return std::binary_search(together_.begin(), together_.end(), at);
  }
  // Returns what the relaxation of these windows proves, and raises the proven
  // bound by it; nothing if that would take more ticks.
  std::optional<int64_t> RelaxTogether(const std::vector<OpId>& windows,
                                       int64_t ticks);
  // Looks for the optimum of these windows below the incumbent, within `ticks`,
  // and raises the proven bound by the result. It has no rows if the program is
  // too large for that.
  Refutation SolveTogether(const std::vector<OpId>& windows, bool inside,
                           int64_t incumbent_ns, int64_t ticks);
  // Solves runs of neighbouring windows, including the memory inside their
  // segments: pairs first, then longer runs around the best pairs.
  void CombineNeighbours(int64_t incumbent_ns, int64_t ticks,
                         const PeaksOf& peaks_of);
  // Notes that nothing fits in less than `least_bytes`, which `at` needs for
  // these storages, if that is more than was proven before.
  void Prove(OpId at, int64_t least_bytes, std::vector<StorageId> storages);
  // Raises the proven bound.
  void Raise(int64_t added_ns, ProofSource source);

  const Problem& problem_;
  const int64_t budget_bytes_;
  Effort& effort_;
  Exchange* const exchange_;
  std::map<OpId, std::unique_ptr<WindowBound>> windows_;
  std::map<OpId, WindowResult> tried_;
  std::map<OpId, int> run_length_;    // longest solved run of windows around it
  std::map<OpId, int64_t> run_ns_;    // what that run proved
  std::vector<OpId> refuting_;        // windows of Refute, as chosen
  std::unique_ptr<Refuter> refuter_;  // for the windows of its last call
  int64_t refuted_ns_ = -1;           // the incumbent of its last call
  bool is_near_ = false;
  std::vector<OpId> together_;                // windows of Combine, ascending
  std::vector<OpId> together_order_;          // the same, in order of choice
  std::map<OpId, int64_t> together_scanned_;  // LP with one more window
  std::map<OpId, int64_t> together_rise_;     // of the LP, when last scanned
  int64_t together_ns_ = 0;                   // their LP
  int64_t together_ticks_ = 0;                // given to their optimum
  bool together_finished_ = false;
  bool together_is_large_ = false;  // too large for an optimum
  int64_t guess_parts_ = 8;  // of the way to the best plan: a guess's rise
  std::vector<OpId> together_lacks_;  // where their solution is too large
  bool together_grows_ = true;
  std::vector<OpId> nested_;   // windows of Nest, ascending
  std::set<OpId> nest_tried_;  // those tried as one more
  int64_t added_ns_ = 0;
  ProofSource source_;
  std::optional<verify::Facts> facts_;  // read from the graph on first use
  WindowCeiling ceiling_;
  Infeasible infeasible_;
};

// Returns the positions of the `count` highest local peaks of a profile over
// the base order, highest first, at least `apart` ops from each other.
std::vector<OpId> LocalPeaks(const std::vector<int64_t>& bytes, int count,
                             int apart);

}  // namespace reprise::planner
