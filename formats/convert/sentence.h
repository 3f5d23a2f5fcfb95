// SPDX-License-Identifier: Apache-2.0
//
// The verdict in one sentence; refusal.h has the words of a refusal. The page
// and the command print it verbatim. The Python package, which needs the
// sentence without a server too, computes the same one from the same reports;
// tests/fixtures/verdicts.json checks both.
//
//   It fits in 8.0 GiB.  Peak 7.9 GiB (was 14.2 GiB)   Step 412 ms (+11.3 %)
//     proven optimal
//   ...   at most 0.8 % above optimal
//   It fits in 8.0 GiB as it is: nothing is recomputed.  Peak 5.0 GiB   Step
//     370 ms (+0.0 %)
//   Nothing fits in 3.0 GiB: op 17 aten.bmm.default (layers.3.attn) needs at
//     least 3.4 GiB.
//   No plan found for 3.0 GiB yet: at least 2.8 GiB are needed, a plan is known
//     for 3.2 GiB.
//
// If a run was measured under the plan, this is appended:
//
//    Measured 7.8 GiB (-0.9 %), 415 ms (+0.7 %), gradients bit for bit equal
//     in 3 checks.
//
// The difference to the figures before, which are the verdict's: once a run's
// executor has said what it adds to a step, "Step" includes it. Where nothing
// is recomputed, the checks of recomputed values are left out. A time that was
// measured under another load than the base is not compared:
//
//    415 ms (time not comparable: this process waited for a processor 2 % of the
//     time when the base was measured, 60 % under the plan)
//
// And so is whatever a reader would otherwise be misled about: steps over the
// budget, steps that should have had a plan but had none, steps that left the
// plan, a plan that was withdrawn, refused or missing, a job that died.
//
// What is said of a graph that was inferred, as from a profiler trace, says so
// and claims no proof about the step:
//
//    ...   not proven of the step (an estimate: which op reads which tensor is
//     inferred)
//
// Each sentence is one line. The bytes needed are rounded up, so that the
// printed number, typed as a budget, is never refused. Optimality is claimed
// only if it is proven.
#pragma once

#include <cstdint>
#include <string>

#include "reprise/v1/graph.pb.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/query.pb.h"

namespace reprise::formats {

// Returns " with the 0.9 MiB that are held back beside the ops", of what a
// refusal says is needed; empty for nothing.
std::string HeldBack(int64_t reserve_bytes);

// " The smallest plan that is known takes 2.0 GiB.", where that is more than
// what was proven to be needed, as a proof often ends just above the budget
// that it is of; else "".
std::string SmallestKnown(const v1::Infeasible& why);

// Returns the sentence of a plan. `measured_step_ns` is the job's own step time
// without a plan (0: unknown); the plan's extra time is added to it, and the
// percentages are of it.
std::string PlanSentence(const v1::Plan& plan, int64_t measured_step_ns = 0);

// Returns the sentence for a plan of this strategy that does not fit: what it
// needs.
std::string StrategySentence(std::string_view strategy, const v1::Plan& plan);

// Returns the sentence of a run: the plan's with the prediction of `verdict`,
// the measured part if it has planned steps, and what else must be said. For an
// empty plan it says why there is none. `processes` is the number of those
// whose steps without a plan are counted, such as the ranks of a job.
std::string RunSentence(const v1::Plan& plan, const v1::Verdict& verdict,
                        size_t processes = 1);

// Returns why a graph is not the step itself, in words; empty: it was captured.
std::string WhyInferred(const v1::StepGraph& graph);

// Returns whether the plan runs every op once: it fits without a cost.
bool RecomputesNothing(const v1::Plan& plan);

// Returns whether an infeasible plan is not proven to be so: the search ended
// without an answer.
bool Undecided(const v1::Plan& plan);

// A budget and the bytes needed, as text; exact bytes if rounding would make
// them look alike.
struct BytesPair {
  std::string budget;
  std::string needed;
};
BytesPair BudgetAndNeeded(int64_t budget, int64_t needed);

// Like FormatBytes, but rounded up: "3.1 GiB" for 3.01 GiB.
std::string FormatBytesUp(int64_t bytes);

}  // namespace reprise::formats
