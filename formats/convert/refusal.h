// SPDX-License-Identifier: Apache-2.0
//
// Why there is no plan, in a sentence that claims no more than is proven.
//
//   Nothing fits in 3.0 GiB: op 17 aten.bmm.default (layers.3.attn) needs at
//     least 3.4 GiB.
//
// says that of the job: of these ops, in this order, whoever runs them. What
// this executor needs, where that is more, follows with the rule that makes it
// so:
//
//   Nothing fits in 1.6 GiB: op 17 aten.bmm.default needs at least 1.7 GiB;
//   this
//     executor 3.4 GiB, as it never runs op 9 mine.mix.default (layers.3)
//     again.
//
// Where only the rules of the executor are in the way, it is the executor that
// cannot, and the sentence names the rule:
//
//   This executor cannot keep to 3.0 GiB: op 17 aten.bmm.default needs at least
//     3.4 GiB, as it never runs op 9 mine.mix.default (layers.3) again.
//
// Short: an agent takes less than 192 bytes of it.
#pragma once

#include <string>

#include "formats/convert/plan_proto.h"
#include "reprise/v1/plan.pb.h"

namespace reprise::formats {

// Of a plan that is not feasible. Costs a few windows of the planner, where the
// executor's rules matter.
std::string RefusalSentence(const Task& task, const v1::Plan& plan);

}  // namespace reprise::formats
