// SPDX-License-Identifier: Apache-2.0
//
// Dead re-runs: those whose outputs are all made again, or the step ends,
// before any op reads them. Constructions that run whole stretches again leave
// some.
#pragma once

#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

// Returns the list without its dead re-runs and those that only fed them. First
// runs stay. O(execs + arities).
std::vector<OpId> WithoutUnread(const Problem& problem,
                                const std::vector<OpId>& execs);

}  // namespace reprise::planner
