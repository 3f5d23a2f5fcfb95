// SPDX-License-Identifier: Apache-2.0
//
// Random steps on executors with a link to host memory.
#pragma once

#include <vector>

#include "planner/model/evaluate.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {

inline std::vector<int64_t> CodesOf(const Schedule& schedule) {
  std::vector<int64_t> codes;
  for (const Entry& entry : schedule) codes.push_back(CodeOf(entry));
  return codes;
}

// Adds what is there before and after the step and read at its end, as the state
// of an optimizer is.
inline void AddState(StepGraph& graph, int64_t bytes) {
  const StorageId state = graph.storage_count();
  graph.storages.push_back({.bytes = bytes,
                            .category = Category::kOptimizerState,
                            .name = "optimizer state"});
  graph.ops.front().writes.push_back(state);
  graph.ops.back().reads.push_back(state);
  graph.required.push_back(state);
}

// A random graph, executor and link.
struct HostCase {
  explicit HostCase(int number, int most_ops = 8)
      : random(Random(uint64_t{97} << 32 | static_cast<uint64_t>(number))),
        graph(RandomGraph(random, most_ops)),
        capabilities(number % 3 == 0   ? Capabilities{}
                     : number % 3 == 1 ? TapeCapabilities()
                                       : RandomCapabilities(random)) {
    const int64_t bytes = 1'000'000'000;
    capabilities.link = {.out_bytes_per_s = bytes / (1 + random.Below(3)),
                         .in_bytes_per_s = bytes / (1 + random.Below(3)),
                         .latency_ns = random.Below(3),
                         .host_bytes = 4 + random.Below(20)};
    if (number % 4 == 3) AddState(graph, 1 + random.Below(8));
  }
  Random random;
  StepGraph graph;
  Capabilities capabilities;
};

}  // namespace reprise::planner
