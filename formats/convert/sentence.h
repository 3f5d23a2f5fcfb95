// SPDX-License-Identifier: Apache-2.0
//
// The verdict in one sentence; where it is a refusal, refusal.h has the words.
// The page and the command print it letter for letter; the Python package,
// which must have one without a server too, makes the same of the same reports
// (tests/fixtures/verdicts.json holds both to it).
//
//   It fits in 8.0 GiB.  Peak 7.9 GiB (was 14.2 GiB)   Step 412 ms (+11.3 %)
//     proven optimal
//   ...   at most 0.8 % above optimal
//   Nothing fits in 3.0 GiB: op 17 aten.bmm.default (layers.3.attn) needs at
//     least 3.4 GiB.
//   No plan found for 3.0 GiB yet: at least 2.8 GiB are needed, a plan is known
//     for 3.2 GiB.
//
// and, once a run was measured under the plan, with this appended:
//
//    Measured 7.8 GiB (-0.9 %), 415 ms (+0.7 %), gradients bit for bit equal
//     in 3 checks.
//
// and with whatever else a reader would otherwise be misled about: steps over
// the budget, steps without a plan that were, steps that left the plan, a plan
// withdrawn, refused or missing, a job that died.
//
// (each on one line). What is needed is rounded up, so that typing the printed
// number is never refused, and a proof is claimed only where there is one.
#pragma once

#include <cstdint>
#include <string>

#include "reprise/v1/plan.pb.h"
#include "reprise/v1/query.pb.h"

namespace reprise::formats {

// From the plan's figures; `measured_step_ns` is the job's own step time
// without a plan (0 where unknown): the plan's extra time is added to it.
std::string PlanSentence(const v1::Plan& plan, int64_t measured_step_ns = 0);

// Where the plan that a strategy stands for does not fit: what it needs.
std::string StrategySentence(std::string_view strategy, const v1::Plan& plan);

// The plan's sentence, the measured part once `verdict` has planned steps, and
// what else is to be said. Of an empty plan: why there is none. `processes`:
// those whose steps without a plan are counted, as the ranks of a job.
std::string RunSentence(const v1::Plan& plan, const v1::Verdict& verdict,
                        size_t processes = 1);

// Why a feasible = false plan is none: proven, or ended without an answer.
bool Undecided(const v1::Plan& plan);

// A budget and what is needed instead, in bytes where rounding makes them look
// alike.
struct BytesPair {
  std::string budget;
  std::string needed;
};
BytesPair BudgetAndNeeded(int64_t budget, int64_t needed);

// As FormatBytes, rounded up: "3.1 GiB" for 3.01 GiB.
std::string FormatBytesUp(int64_t bytes);

}  // namespace reprise::formats
