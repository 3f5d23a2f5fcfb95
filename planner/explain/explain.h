// SPDX-License-Identifier: Apache-2.0
//
// Why a plan is as it is: for every storage what happens to it, what that costs
// and what the opposite decision would cost; the price of memory at this
// budget; and what prevents a smaller one.
//
// `why` is one of
//
//   room            saved: the budget leaves room for it, at no price
//   no_gain         saved: not alive at the peak
//   small           saved: below a thousandth of the peak
//   pinned          saved: the user or the executor keeps it
//   not_repeatable  saved: its op runs only once, or an in-place version on the
//                   way to it does
//   capability      saved: its op could run again, but not with this executor
//   costly          saved: recomputing it costs more than its bytes are worth
//   cheap           recomputed: costs less than its bytes are worth
//   shared          recomputed: one more run serves several readers
//   needed          recomputed: costs more, but nothing cheaper frees memory
//   hidden          offloaded: its copies end before anything waits for them
//   awaited         offloaded: the step waits for one of its copies
//
// The value of a byte is the price: the slope of the proven bound in the
// budget, at the window with the strongest bound (window_bound.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/model/plan.h"

namespace reprise::planner {

// One life: from the exec `born` to the exec `last`, as positions among the
// execs, and the times at which these start and end.
struct StorageLife {
  int32_t born = 0;
  int32_t last = 0;
  int64_t born_ns = 0;
  int64_t last_ns = 0;
};

// The plan with the opposite decision for one storage, compared with the plan.
struct WhatIf {
  Decision decision = Decision::kSave;
  int64_t added_ns = 0;
  int64_t added_bytes = 0;  // of the peak
};

// Per storage: what the plan does with it, and why.
struct StorageExplanation {
  StorageId storage = 0;
  Decision decision = Decision::kSave;
  OpId made_by = kNoOp;
  OpId last_read_by = kNoOp;
  int64_t recompute_ns = 0;  // once, without its absent inputs
  int32_t times_recomputed = 0;
  bool alive_at_peak = false;
  bool alive_at_base_peak = false;
  std::string why = {};
  // Offloaded: by how much a copy ends before it is waited for, at least;
  // negative: how long the step waits.
  int64_t copy_slack_ns = 0;
  std::vector<StorageLife> lives = {};
  std::optional<WhatIf> what_if = {};
};

// Storages that equal blocks have in common: the same op at the same place of a
// module whose path differs only in numbers, the same bytes, the same decision.
struct StorageGroup {
  std::string name = {};  // "layers.0-31.mlp aten.gelu.default"
  Decision decision = Decision::kSave;
  std::string why = {};  // the most frequent
  int64_t bytes = 0;     // together
  int64_t recompute_ns = 0;
  int64_t copy_slack_ns = 0;  // the least of theirs
  std::vector<StorageId> storages = {};
};

// What one op has in memory at the same time. With `by_window`: what must be
// present when it first runs, because later ops need it and it cannot be
// recomputed.
struct WorkingSet {
  OpId op = kNoOp;
  bool by_window = false;
  int64_t bytes = 0;  // including static memory and workspace
  int64_t workspace_bytes = 0;
  std::vector<StorageId> storages = {};  // largest first
  std::string advice = {};
};

struct Explanation {
  std::vector<StorageExplanation> storages;  // by id
  std::vector<StorageGroup> groups;          // most bytes first
  double price_ns_per_byte = 0;
  WorkingSet working_set;
};

// Explains a plan of the planner, or a stored one that passed the evaluator.
// Reads only its `feasible`, `schedule`, `evaluation` and `infeasible`. For
// infeasible plans, explains the working set and the storages of the step
// without a plan. O(schedule x what-ifs), and ten windows.
Explanation Explain(const StepGraph& graph, const Plan& plan,
                    int64_t budget_bytes, const Capabilities& capabilities);

}  // namespace reprise::planner
