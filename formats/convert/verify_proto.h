// SPDX-License-Identifier: Apache-2.0
//
// Certificates between the verifier's structs and the protos, and what the
// verifier says of a plan: the command's `verify` and the API's Verify.
#pragma once

#include "base/status.h"
#include "planner/verify/verify.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::formats {

void ToProto(const verify::Certificate& from, const verify::Executor& executor,
             int64_t reserve_bytes, v1::Certificate& to);
verify::Certificate ToCertificate(const v1::Certificate& from);
verify::Executor ToExecutor(const v1::Certificate& from);

// Checks what the plan says. `otherwise`: the executor of plans that hold no
// certificate, which can only be walked.
v1::Verification VerifyPlan(const planner::StepGraph& graph,
                            const v1::Plan& plan,
                            const verify::Executor& otherwise);

}  // namespace reprise::formats
