// SPDX-License-Identifier: Apache-2.0
//
// Test cases of the planner as data: a step graph, a budget and the expected
// plan in one text file that needs no C++. See cases/*.plan.
//
//   executor tape                      the tape's capabilities; else reference
//   static 5 bytes     budget 12 bytes
//   op NAME  10 ns  [forward|backward|optimizer] [once|seeded|collective|view]
//            [reads x y] [mutates x] [makes z 8] [workspace 3]
//   required x y       pinned x        release x after NAME
//   expect recompute y z   peak 12 bytes   step 60 ns   [bound 10 ns]
//   expect impossible   needs 12 bytes   at NAME
#pragma once

#include <map>
#include <string>
#include <vector>

#include "planner/planner.h"

namespace reprise::planner {

struct PlanCase {
  StepGraph graph;
  Request request;
  bool impossible = false;
  std::vector<std::string> recompute;  // names of storages
  int64_t peak_bytes = 0;              // or what an impossible case needs
  int64_t step_ns = 0;
  int64_t bound_ns = -1;  // proven lower bound; -1: not given
  std::string at;         // the op that makes it impossible
  std::map<std::string, StorageId> storages;
};

// Returns INVALID_ARGUMENT with the line that cannot be read.
StatusOr<PlanCase> ReadCase(const std::string& path);

}  // namespace reprise::planner
