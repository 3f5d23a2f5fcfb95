// SPDX-License-Identifier: Apache-2.0
//
// The chains that most tests of the planner use, and MustPlan, which expects a
// plan.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "planner/chains/rotor.h"
#include "planner/planner.h"

namespace reprise::planner {

// A chain of layers with a mirrored backward: layer i makes x_i (10 bytes) from
// x_(i-1); its backward reads x_(i-1) and the gradient of x_i.
inline StepGraph Chain(int layers) {
  StepGraph graph;
  for (int i = 0; i < layers; ++i) {
    graph.storages.push_back({.bytes = 10, .saved_for_backward = true});
    Op op{.time_ns = 100, .writes = {i}};
    if (i > 0) op.reads = {i - 1};
    graph.ops.push_back(op);
  }
  for (int i = layers; i-- > 0;) {
    const StorageId gradient = graph.storage_count();
    graph.storages.push_back({.bytes = 10});
    Op op{.time_ns = 200, .phase = Phase::kBackward, .writes = {gradient}};
    if (i > 0) op.reads.push_back(i - 1);
    op.reads.push_back(i == layers - 1 ? i : gradient - 1);
    graph.ops.push_back(op);
  }
  graph.required = {graph.storage_count() - 1};
  return graph;
}

// A chain of layers of 10 bytes, 100 ns forward and 200 ns backward, in which
// the backward of layer i, op 2 layers - 1 - i, reads x_i.
inline StepGraph UniformChain(int layers) {
  StepGraph graph;
  for (int i = 0; i < layers; ++i) {
    graph.storages.push_back({.bytes = 10});
    Op op{.time_ns = 100, .writes = {i}};
    if (i > 0) op.reads = {i - 1};
    graph.ops.push_back(op);
  }
  for (int i = layers; i-- > 0;) {
    const StorageId gradient = graph.storage_count();
    graph.storages.push_back({.bytes = 10});
    Op op{.time_ns = 200, .phase = Phase::kBackward, .reads = {i}};
    if (i + 1 < layers) op.reads.push_back(gradient - 1);
    op.writes = {gradient};
    graph.ops.push_back(op);
  }
  graph.required = {graph.storage_count() - 1};
  return graph;
}

// Returns Revolve's schedule for UniformChain.
inline std::vector<OpId> RevolveExecs(int layers, int slots) {
  std::vector<OpId> execs;
  for (const RotorStep& step : RevolveSteps(layers, slots)) {
    execs.push_back(step.kind == RotorStep::Kind::kBackward
                        ? 2 * layers - 1 - step.stage
                        : step.stage);
  }
  return execs;
}

inline Plan MustPlan(const StepGraph& graph, const Request& request) {
  const StatusOr<Plan> plan = MakePlan(graph, request);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? *plan : Plan{};
}

}  // namespace reprise::planner
