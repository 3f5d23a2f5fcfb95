// SPDX-License-Identifier: Apache-2.0
//
// The one slot from which the CUDA driver loads a library into a program when
// the program first uses CUDA: CUDA_INJECTION64_PATH. By it the agent is there
// before any context, also in a program that does not load it by itself; nsys,
// ncu and others use the same slot. A driver that cannot load what it finds
// there fails the program, so only what was seen to load is put there.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace reprise::cli {

// What a job needs in its environment to get the agent from the driver: the
// slot, and REPRISE_AGENT, so that Python loads the same file and no second
// agent. Empty where there is no agent to be had, or where the slot says
// "none", which is CUDA's own word for nothing.
//
// FAILED_PRECONDITION: another tool has the slot; names it. For before any
// thread is there: loading is tried in a child.
StatusOr<std::vector<std::pair<std::string, std::string>>> TakeInjectionSlot();

}  // namespace reprise::cli
