// SPDX-License-Identifier: Apache-2.0
//
// The certificate of one budget: the best bound over the windows tried so far,
// or the proof that nothing fits. Windows keep their networks, so that asking
// one again, at another budget, costs its max-flows only.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "planner/effort.h"
#include "planner/planner.h"
#include "planner/window_bound.h"

namespace reprise::planner {

class Certificate {
 public:
  Certificate(const Problem& problem, int64_t budget_bytes, Effort& effort);

  // Solves the window at an op for the budget, once.
  void Try(OpId at);
  // Solves the tried windows exactly, best bound first, until `enough_ns` is
  // proven or the ticks are spent. Returns the keep-set of the best one.
  WindowResult Sharpen(int64_t enough_ns, int64_t ticks);
  // Looks further back from the ops whose working set is largest, for a proof
  // that the budget is impossible (pebble.h).
  void TryPebbling(int64_t ticks);
  // Solves it for a smaller budget, for its keep-set; proves nothing new.
  WindowResult KeepSetFor(OpId at, int64_t budget_bytes);

  // Proven: every schedule adds at least this much time.
  int64_t added_ns() const { return added_ns_; }
  bool impossible() const {
    return infeasible_.smallest_budget_bytes > budget_bytes_;
  }
  // The smallest budget not ruled out, and the op that rules out less.
  const Infeasible& infeasible() const { return infeasible_; }
  const std::map<OpId, WindowResult>& tried() const { return tried_; }

 private:
  WindowBound& At(OpId at);
  void Prove(OpId at, int64_t least_bytes, std::vector<StorageId> storages);

  const Problem& problem_;
  const int64_t budget_bytes_;
  Effort& effort_;
  std::map<OpId, std::unique_ptr<WindowBound>> windows_;
  std::map<OpId, WindowResult> tried_;
  std::map<OpId, int64_t> sharpened_;  // ticks given so far
  int64_t added_ns_ = 0;
  Infeasible infeasible_;
};

// Positions of the highest local peaks of a profile over the base order,
// highest first, at least `apart` ops from each other.
std::vector<OpId> LocalPeaks(const std::vector<int64_t>& bytes, int count,
                             int apart);

}  // namespace reprise::planner
