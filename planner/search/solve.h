// SPDX-License-Identifier: Apache-2.0
//
// One solve: the pipeline of algorithms for one problem and one budget.
//
//   base order fits        -> done, proven
//   screen and windows     -> impossible, with the proof
//   cuts -> schedules      -> restore -> local search, from several starts
//   windows where the best plan reaches the budget -> better bound
//
// What is known about a problem outlives a solve: a sweep shares it. A
// solution's bound and refusal are those of the certificate (certificate.h),
// however the search ended; constructions, chains, annealing and saved sets
// find schedules and prove nothing.
#pragma once

#include "planner/bounds/certificate.h"
#include "planner/bounds/certify.h"
#include "planner/chains/chain_plan.h"
#include "planner/model/archive.h"
#include "planner/model/flags.h"
#include "planner/model/plan.h"
#include "planner/model/problem.h"

namespace reprise::planner {

struct Solution {
  int64_t added_ns = 0;  // proven for this budget
  ProofSource source;    // of added_ns
  bool impossible = false;
  Infeasible infeasible;
  std::vector<PassLine> passes = {};
};

// Steps of at most this many ops are small: in larger ones, the last hundredths
// of a percent cost too much.
inline constexpr int kMostSmallOps = 1500;
// In smaller steps, annealing finds what dividing the forward would.
inline constexpr int kFewestSegmentedOps = 400;

// Returns added time as a fraction of the base time.
inline double Overhead(int64_t added_ns, int64_t base_time_ns) {
  if (base_time_ns <= 0) return 0;
  return static_cast<double>(added_ns) / static_cast<double>(base_time_ns);
}

// Returns the list of passes, in the order in which they are tried.
std::vector<PassRule> PassRules();

// INVALID_ARGUMENT if a field of the request is out of range.
Status CheckRequest(const Request& request);
// INVALID_ARGUMENT if it has host memory, which only MakePlan knows.
Status CheckHasNoHost(const Request& request);

// What the solves of one problem share; nothing in it depends on a budget.
struct Known {
  // Starts with the base order: a budget may not need a plan.
  explicit Known(const Problem& problem);

  Generator generator;
  Archive archive;
  ChainSchedules chains;
  bool has_strategies = false;  // the named plans are in the archive
};

// Returns the ticks of a request; by default about three seconds of one core,
// and about 20 seconds for 100,000 ops.
int64_t TicksOf(const Problem& problem, const Request& request);

// Tries windows at the highest local peaks of the base order and, until `ticks`
// are spent, at all its ops above the budget. In large steps, skips ops whose
// windows are known, from similar ones, to prove no more.
void CertifyBase(const Problem& problem, int64_t budget_bytes, int64_t ticks,
                 Certificate& certificate, Effort& effort);

// Raises the smallest budget not ruled out, as far as the ticks allow.
Infeasible ProveMore(const Problem& problem, Infeasible infeasible,
                     int64_t ticks, Effort& effort);

// Searches until the gap is at most `target_gap` or the effort is over. The
// schedules it finds are in the archive.
Solution Solve(const Problem& problem, const Request& request, Known& known,
               Effort& effort);

// Fills in what the schedule of a plan says: decisions, saved storages and
// recomputed ops.
void Describe(const Problem& problem, Plan& plan);

// Returns the plan for a budget from the archive, evaluated again.
StatusOr<Plan> PlanFrom(const Problem& problem, int64_t budget_bytes,
                        const Solution& solution, const Archive& archive);

}  // namespace reprise::planner
