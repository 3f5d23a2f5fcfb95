// SPDX-License-Identifier: Apache-2.0
//
// Explains in one sentence why there is no plan, claiming no more than is
// proven.
//
//   Nothing fits in 3.0 GiB: op 17 aten.bmm.default (layers.3.attn) needs at
//     least 3.4 GiB.
//
// says that no executor could run these ops in this order. If this executor
// needs more than that, the sentence goes on with its need and the rule that
// causes it:
//
//   Nothing fits in 1.6 GiB: op 17 aten.bmm.default needs at least 1.7 GiB;
//     this executor 3.4 GiB, as it never runs op 9 mine.mix.default (layers.3)
//     again.
//
// If only the executor's rules are the obstacle, the sentence says that the
// executor cannot do it, and names the rule:
//
//   This executor cannot keep to 3.0 GiB: op 17 aten.bmm.default needs at least
//     3.4 GiB, as it never runs op 9 mine.mix.default (layers.3) again.
//
// Short, because an agent takes less than 192 bytes.
#pragma once

#include <string>

#include "formats/convert/plan_proto.h"
#include "reprise/v1/plan.pb.h"

namespace reprise::formats {

// Returns the refusal of a budget for `graph`. Its budgets are those of the
// request, of which `reserve_bytes` were held back.
v1::Infeasible ToProto(const planner::Infeasible& refusal,
                       const planner::StepGraph& graph,
                       int64_t reserve_bytes = 0);

// Returns the sentence for an infeasible plan. Solves a few windows of the
// planner if the executor's rules matter.
std::string RefusalSentence(const Task& task, const v1::Plan& plan);

}  // namespace reprise::formats
