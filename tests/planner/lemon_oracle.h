// SPDX-License-Identifier: Apache-2.0
//
// Maximum flow by LEMON's push-relabel, which shares no code with max_flow.h.
// C++17: LEMON 1.3 does not compile as C++20.
#pragma once

#include <cstdint>
#include <vector>

namespace reprise::planner {

struct LemonArc {
  int from, to;
  int64_t capacity;
};

// Returns the maximum flow from node 0 to node 1.
int64_t LemonMaxFlow(int nodes, const std::vector<LemonArc>& arcs);

}  // namespace reprise::planner
