// SPDX-License-Identifier: Apache-2.0
//
// Repairs a schedule that exceeds the budget, for steps in which annealing is
// slow: time is spent where it removes most memory.
//
// The excess of a list of execs is its memory above the budget, summed over all
// execs. A price, in bytes of excess per ns, falls from where nothing is worth it
// until there is no excess. At each price
//
//   - every gap of a value that spans execs above the budget is tried, most
//     promising first: the value is recomputed before the reader that ends the
//     gap, with what that needs. Inputs that are absent are recomputed, too;
//     inputs that would have to stay longer do, unless that is worth more than
//     their time
//   - every re-run whose time is worth more than the memory it saves is deleted,
//     with the re-runs that only fed it
//
// and is kept if excess and time change by that price or better. So the peak of
// a long burst is split: what was recomputed for a late reader is discarded
// after the burst and recomputed again, or stays from the beginning. What a
// try was worth is remembered: while it is below the price it is not tried
// again.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/effort.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Returns a list of execs within the budget, made from one that need not be;
// nothing if the ticks end or the effort is over before there is one. `nearest`,
// if given, then receives the list as far as it is repaired, if it is valid.
std::vector<OpId> Cover(const Problem& problem, int64_t budget_bytes,
                        const std::vector<OpId>& execs, int64_t most_ticks,
                        Effort& effort, std::vector<OpId>* nearest = nullptr);

}  // namespace reprise::planner
