// SPDX-License-Identifier: Apache-2.0
//
// Converts certificates between the verifier's structs and the protos, and runs
// the verifier on a plan, for the command `verify` and the API's Verify.
#pragma once

#include "planner/verify/verify.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::formats {

void ToProto(const verify::Certificate& from, const verify::Executor& executor,
             int64_t reserve_bytes, v1::Certificate& to);
verify::Certificate ToCertificate(const v1::Certificate& from);
verify::Executor ToExecutor(const v1::Certificate& from);

// Checks the claims of a plan. `otherwise` is the executor to assume for a plan
// without a certificate, whose schedule can only be evaluated.
v1::Verification VerifyPlan(const planner::StepGraph& graph,
                            const v1::Plan& plan,
                            const verify::Executor& otherwise);

}  // namespace reprise::formats
