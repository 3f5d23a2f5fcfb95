// SPDX-License-Identifier: Apache-2.0
//
// The planner's request and its answer: a plan with its bound and proof, or the
// reason why nothing fits. The functions are in planner/planner.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/model/certificate.h"
#include "planner/model/evaluate.h"
#include "planner/model/exchange.h"
#include "planner/model/passes.h"
#include "planner/model/step_graph.h"

namespace reprise::planner {

// Numbered as reprise.v1.Decision.
enum class Decision : uint8_t {
  kUnspecified = 0,
  kSave = 1,
  kRecompute = 2,
  kOffload = 4,
};

struct Progress {
  double overhead = -1;  // best so far; negative: none yet
  double bound = 0;
  std::string_view pass = {};  // that just ended or gained something
};

// What to plan with: the whole portfolio, or one named plan (strategy.h).
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
  // If not kAuto: the plan of that name, whose peak does not depend on the
  // budget. If it exceeds the budget, the answer is `undecided`, and
  // infeasible.smallest_known_bytes says what the plan would need.
  Strategy strategy = Strategy::kAuto;
  double target_gap = 0.001;  // stop when overhead - bound <= target_gap
  int64_t max_ticks = 0;      // 0: default
  // Search until should_stop returns true or the target gap is reached; ticks
  // then only set the pace. Requires should_stop.
  bool until_stopped = false;
  uint64_t seed = 1;
  // Passes to skip, by name (PassRules of solve.h): for comparisons.
  std::vector<std::string> without = {};
  // Search the reduced graph of reduce.h: the same optimum in less time.
  bool reduce = true;
  // Limit of simplex iterations for a certificate of several windows, after the
  // search; 0: none. Certificates of single windows are always made.
  int64_t certify_iterations = 100'000;
  // Called every few thousand ticks.
  std::function<bool()> should_stop = {};
  // Like should_stop, but ends only the search: its result is still certified.
  std::function<bool()> search_is_over = {};
  std::function<void(const Progress&)> on_progress = {};
  // If several searches share the work: what they tell each other, and this
  // one's part. The result then depends on timing.
  Exchange* exchange = nullptr;
  Part part = Part::kAll;
};

// Returns whether a bound proves that a plan with this added time is optimal:
// they are equal, up to the tolerance of the search (2 in a million of the
// added time, and one in 10^8 of the base time). Exact for times below 500,000
// ns.
bool IsProven(int64_t base_time_ns, int64_t added_ns, int64_t bound_ns);

// What supports a bound or a refusal.
enum class BoundProof : uint8_t {
  kNone,     // nothing but trivial claims
  kSolver,   // the search alone
  kChecked,  // the verifier accepted a certificate (planner/verify)
};

// Why a budget is impossible.
struct Infeasible {
  int64_t smallest_budget_bytes = 0;  // nothing fits in less
  OpId blocking_op = kNoOp;           // the op that needs this much
  std::vector<StorageId> storages;    // what it needs, largest first
  int64_t smallest_known_bytes = 0;   // smallest peak of a known plan; 0: none
  // If several windows prove it together: these, and whether memory inside
  // segments was included.
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
  // What supports the bound, or the refusal.
  BoundProof bound_proof = BoundProof::kNone;
  // What the verifier accepted: a certificate of this bound or refusal if
  // bound_proof is kChecked, otherwise of a smaller bound; method kNone if
  // there is none.
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
  // Passes of the search that found the plan, in the order of their first runs.
  // Their ticks add up to those of that search.
  std::vector<PassLine> passes;

  std::vector<Decision> decisions;   // by storage
  std::vector<StorageId> saved;      // present when the backward begins
  std::vector<OpId> recomputed_ops;  // in schedule order, with repeats
};

}  // namespace reprise::planner
