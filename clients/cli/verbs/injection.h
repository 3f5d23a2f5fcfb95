// SPDX-License-Identifier: Apache-2.0
//
// CUDA_INJECTION64_PATH names one library that the CUDA driver loads when a
// program first uses CUDA. It brings the agent in before any context exists,
// even in a program that does not load the agent itself; nsys, ncu and other
// tools use the same variable. If the driver cannot load the library, the
// program fails, so the agent is only set there after a test load has
// succeeded.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace reprise::cli {

// Returns the environment variables with which the driver loads the agent into
// a job: CUDA_INJECTION64_PATH, and REPRISE_AGENT, so that Python loads the
// same file and not a second agent. Empty if there is no agent, or if the
// variable is "none", which is CUDA's word for nothing.
//
// FAILED_PRECONDITION: another tool uses the variable; names it. Call it before
// any thread is started: the test load runs in a forked child.
StatusOr<std::vector<std::pair<std::string, std::string>>> TakeInjectionSlot();

}  // namespace reprise::cli
