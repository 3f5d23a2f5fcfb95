// SPDX-License-Identifier: Apache-2.0
//
// What is asked of the planner and what it answers: a request, a plan with its
// bound and proof, or why nothing fits. The front door is planner/planner.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/model/evaluate.h"
#include "planner/model/exchange.h"
#include "planner/model/passes.h"
#include "planner/model/step_graph.h"
#include "planner/verify/certificate.h"

namespace reprise::planner {

enum class Decision : uint8_t { kUnspecified, kSave, kRecompute };

struct Progress {
  double overhead = -1;  // best so far; negative: none yet
  double bound = 0;
  std::string_view pass = {};  // that has just ended, or gained something
};

// What to plan with: everything there is, or a plan by name (strategy.h).
enum class Strategy : uint8_t {
  kAuto,
  kMemory,
  kSpeed,
  kCollection,
  kPerBlock,
  kSaveAll,
};

struct Request {
  int64_t budget_bytes = 0;
  Capabilities capabilities = {};
  // Not kAuto: the plan of that name, whose peak does not follow the budget.
  // Where it exceeds it, the answer is `undecided`, and
  // infeasible.smallest_known_bytes says what it would need.
  Strategy strategy = Strategy::kAuto;
  double target_gap = 0.001;  // stop when overhead - bound <= target_gap
  int64_t max_ticks = 0;      // 0: default
  // Search on until should_stop says so or the target gap is reached; the
  // ticks only set the pace. Needs should_stop.
  bool until_stopped = false;
  uint64_t seed = 1;
  // Passes to leave out, by name (PassRules of solve.h): for comparisons.
  std::vector<std::string> without = {};
  // Search the smaller graph of reduce.h: the same optimum in less time.
  bool reduce = true;
  // Simplex iterations that a certificate of several windows may take, after
  // the search; those of single windows are always made. 0: none.
  int64_t certify_iterations = 100'000;
  // Asked every few thousand ticks.
  std::function<bool()> should_stop = {};
  // The same, of the search alone: a certificate of what it found is still
  // made.
  std::function<bool()> search_is_over = {};
  std::function<void(const Progress&)> on_progress = {};
  // Where several searches share the work: what they tell each other, and this
  // one's part. What they find then depends on time.
  Exchange* exchange = nullptr;
  Part part = Part::kAll;
};

// Whether a bound proves that a plan adding this much time is optimal: equal,
// up to what a MIP solver can say (2 in a million of the added time, and one in
// 10^8 of the base time). Exact for times below 500,000 ns.
bool IsProven(int64_t base_time_ns, int64_t added_ns, int64_t bound_ns);

// Whose word it is that a bound, or a refusal, is true.
enum class BoundProof : uint8_t {
  kNone,     // nothing is claimed but what is trivial
  kSolver,   // the search's, and where it asked CBC, CBC's
  kChecked,  // the verifier accepted a certificate (planner/verify)
};

// Why a budget is impossible.
struct Infeasible {
  int64_t smallest_budget_bytes = 0;  // nothing fits in less
  OpId blocking_op = kNoOp;           // the op that needs it
  std::vector<StorageId> storages;    // what it needs, largest first
  int64_t smallest_known_bytes = 0;   // smallest peak of a known plan; 0: none
  // Where several windows prove it together: these, with memory inside segments
  // or without.
  std::vector<OpId> windows = {};
  bool inside = false;
};

struct Plan {
  bool feasible = false;
  Infeasible infeasible;  // set when not feasible

  Schedule schedule;
  Evaluation evaluation;  // of `schedule`
  int64_t base_peak_bytes = 0;
  int64_t base_time_ns = 0;
  double overhead = 0;   // time / base time - 1
  double bound = 0;      // <= overhead
  int64_t bound_ns = 0;  // the same, in added time
  // Of the bound, or of the refusal.
  BoundProof bound_proof = BoundProof::kNone;
  // What the verifier accepted: of this bound or refusal where bound_proof is
  // kChecked, of a smaller bound else; method kNone where there is none.
  verify::Certificate certificate;
  // The bound reaches the overhead (IsProven) ...
  bool is_optimal = false;
  // ... and was checked.
  bool proven_optimal = false;
  // The search ended (ticks, should_stop) without a plan and without a proof:
  // feasible is false and infeasible.smallest_budget_bytes <= budget.
  bool undecided = false;
  bool interrupted = false;
  std::string solver;
  int64_t ticks = 0;
  // Of the search that found the plan, in the order of their first runs. Their
  // ticks add up to those of that search.
  std::vector<PassLine> passes;

  std::vector<Decision> decisions;   // by storage
  std::vector<StorageId> saved;      // present when the backward begins
  std::vector<OpId> recomputed_ops;  // in schedule order, with repeats
  // What an executor of kOnce or kNested is told; empty for others.
  RegionPlan regions;
};

}  // namespace reprise::planner
