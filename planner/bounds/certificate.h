// SPDX-License-Identifier: Apache-2.0
//
// The certificate of one budget: the best bound over the windows tried so far,
// or the proof that nothing fits. Windows keep their networks, so that asking
// one again, at another budget, costs its max-flows only.
//
// What has been proven stays proven however the effort ends: every method adds
// only what its part says survives an interruption (window_bound.h, pebble.h,
// mip.h), and one that is not begun adds nothing.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "planner/bounds/certify.h"
#include "planner/bounds/certify_tree.h"
#include "planner/bounds/many_windows.h"
#include "planner/bounds/window_bound.h"
#include "planner/bounds/window_ceiling.h"
#include "planner/model/effort.h"
#include "planner/model/plan.h"

namespace reprise::planner {

// As IsProven of planner.h, for a problem.
bool IsProven(const Problem& problem, int64_t added_ns, int64_t bound_ns);

class Certificate {
 public:
  // Threads of the exchange, if there is one, help to grow trees.
  Certificate(const Problem& problem, int64_t budget_bytes, Effort& effort,
              Exchange* exchange = nullptr);

  // Solves the window at an op for the budget, once.
  void Try(OpId at);
  // Solves the tried windows exactly, best bound first, until `enough_ns` is
  // proven or the ticks are spent. Returns the keep-set of the best one.
  WindowResult Sharpen(int64_t enough_ns, int64_t ticks);
  // Several windows at once (many_windows.h), where the build has a MIP solver.
  // The set of windows grows one by one: a window where the schedule made of
  // the last solution exceeds the budget (`peaks_of` makes it and says where,
  // highest first; nothing where it fits or cannot be made), else the candidate
  // that raises the LP most. Solutions that add `incumbent_ns` (the best plan
  // known; negative: none) or more are of no interest. Asked again with more
  // ticks it goes on. Before that, where asked for, runs of neighbouring
  // windows, with memory inside their segments.
  using PeaksOf = std::function<std::vector<OpId>(
      const std::vector<KeepSet>& keep_sets, int64_t& incumbent_ns)>;
  void Combine(int64_t incumbent_ns, int64_t ticks, const PeaksOf& peaks_of,
               bool neighbours = true);
  // Whether the best plan known is optimal, by a tree over few windows that
  // knows what to prove (Refuter). Begins with the best window; a
  // solution that adds less and exceeds the budget says which one is missing.
  // Soon over, one way or the other. Asked again with another plan it goes on.
  void Refute(int64_t incumbent_ns, int64_t ticks, const PeaksOf& peaks_of);
  // Looks further back from the ops whose working set is largest, for a proof
  // that the budget is impossible (pebble.h).
  void TryPebbling(int64_t ticks);
  // Solves it for a smaller budget, for its keep-set; proves nothing new.
  WindowResult KeepSetFor(OpId at, int64_t budget_bytes);
  // The same where these values are saved by all means.
  WindowResult KeepSetSaving(OpId at, int64_t budget_bytes,
                             const std::vector<ValueId>& saved);

  // Whether the window at an op may raise what is proven by more than this: of
  // windows like one that is solved it is known that they do not.
  bool MayRise(OpId at, int64_t rise_ns) const {
    return ceiling_.At(at) - added_ns_ > rise_ns;
  }

  // Refute has found the optimum of its windows, and where it exceeds the
  // budget is not known: schedules near it are worth a try.
  bool is_near() const { return is_near_; }

  // Proven: every schedule adds at least this much time.
  int64_t added_ns() const { return added_ns_; }
  // By these windows.
  const ProofSource& source() const { return source_; }
  bool impossible() const {
    return infeasible_.smallest_budget_bytes > budget_bytes_;
  }
  // The smallest budget not ruled out, and the op that rules out less.
  const Infeasible& infeasible() const { return infeasible_; }
  const std::map<OpId, WindowResult>& tried() const { return tried_; }

 private:
  // The LP; the MIP; the MIP with memory inside segments.
  enum class How { kRelaxed, kWhole, kInside };

  WindowBound& At(OpId at);
  std::vector<OpId> Candidates() const;
  Refutation RefuteBy(const std::vector<OpId>& windows, int64_t added_ns,
                      bool to_optimum, int64_t ticks);
  // The cheapest solution of these windows, below the incumbent; kProven where
  // it is, or where there is none.
  Refutation OptimumOf(const std::vector<OpId>& windows, int64_t incumbent_ns,
                       int64_t low_ns, int64_t ticks);
  void SolvePart(int64_t incumbent_ns, int64_t ticks, const PeaksOf& peaks_of);
  ManyWindowsResult SolveTogether(const std::vector<OpId>& windows,
                                  int64_t incumbent_ns, int64_t ticks, How how);
  void CombineNeighbours(int64_t incumbent_ns, int64_t ticks,
                         const PeaksOf& peaks_of);
  void Prove(OpId at, int64_t least_bytes, std::vector<StorageId> storages);
  // Raises what is proven.
  void Raise(int64_t added_ns, ProofSource source);

  const Problem& problem_;
  const int64_t budget_bytes_;
  Effort& effort_;
  Exchange* const exchange_;
  std::map<OpId, std::unique_ptr<WindowBound>> windows_;
  std::map<OpId, WindowResult> tried_;
  std::map<OpId, int64_t> sharpened_;  // ticks given so far
  std::map<OpId, int> run_length_;    // longest run of windows solved around it
  std::map<OpId, int64_t> run_ns_;    // and what it proved
  std::vector<OpId> refuting_;        // windows of Refute, as chosen
  std::unique_ptr<Refuter> refuter_;  // of the windows asked about last
  int64_t refuted_ns_ = -1;           // the incumbent it was asked about
  bool is_near_ = false;
  std::vector<OpId> together_;                // windows of Combine, ascending
  std::vector<OpId> together_order_;          // the same, as they were chosen
  std::map<OpId, int64_t> together_scanned_;  // LP with one more window
  size_t part_solved_ = 0;                    // of these, as one MIP
  int64_t together_ns_ = 0;                   // their LP
  int64_t together_ticks_ = 0;                // given to their MIP so far
  bool together_finished_ = false;
  std::vector<OpId> together_lacks_;  // where their solution is too large
  bool together_grows_ = true;
  int64_t added_ns_ = 0;
  ProofSource source_;
  std::optional<verify::Facts> facts_;  // of the graph, once asked for
  WindowCeiling ceiling_;
  Infeasible infeasible_;
};

// Positions of the highest local peaks of a profile over the base order,
// highest first, at least `apart` ops from each other.
std::vector<OpId> LocalPeaks(const std::vector<int64_t>& bytes, int count,
                             int apart);

}  // namespace reprise::planner
