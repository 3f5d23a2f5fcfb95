// SPDX-License-Identifier: Apache-2.0
//
// Dead re-runs: those none of whose outputs is read before it is made again or
// the step ends. Constructions that run whole stretches again leave some.
#pragma once

#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

// The list without its dead re-runs, and without those that only fed them.
// First runs stay. O(execs + arities).
std::vector<OpId> WithoutUnread(const Problem& problem,
                                const std::vector<OpId>& execs);

}  // namespace reprise::planner
