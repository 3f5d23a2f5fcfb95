// SPDX-License-Identifier: Apache-2.0
//
// The lower bound where values can also be in host memory: the best window,
// with good prices of the rows of the link (window_bound.h).
//
// The bound of a window is concave in these prices. At some of them, the cuts
// say by how much each row is broken, which is a subgradient. Steps follow it as
// far as it promises a certain rise (Polyak, 1969), which is halved where it does
// not come; prices that sum to more than 1 are scaled down. There are up to
// eight rows each way, evenly spread over the times at which values are made and
// read; fewer rows prove less, never more.
//
// One step is one Solve of the window, about ten max-flows.
#pragma once

#include "planner/bounds/window_bound.h"
#include "planner/model/effort.h"

namespace reprise::planner {

struct HostBound {
  int64_t added_ns = 0;
  // The window that proves it; kNoOp: only that nothing can be less than
  // nothing.
  OpId at = kNoOp;
  // Its prices and cuts.
  WindowResult window = {};
};

// Returns the best bound found within the ticks. The problem has a link.
HostBound BoundWithHost(const Problem& problem, int64_t budget_bytes,
                        int64_t ticks, Effort& effort);

// Returns the certificate of a bound; method kNone if the verifier does not
// accept all of it.
verify::Certificate CertifyHost(const Problem& problem, int64_t budget_bytes,
                                const HostBound& bound);

}  // namespace reprise::planner
