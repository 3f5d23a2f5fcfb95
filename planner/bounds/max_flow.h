// SPDX-License-Identifier: Apache-2.0
//
// Minimum cuts with int64 capacities: Dinic's algorithm (Dinitz, 1970) on flat
// arrays. Iterative, so that a chain of 100,000 ops does not overflow the
// stack.
//
// The network is built once; capacities may be changed and the network solved
// again, which the bound does for every price it tries. O(V^2 E) at worst,
// close to linear on the networks of step graphs.
#pragma once

#include <cstdint>
#include <vector>

namespace reprise::planner {

class MaxFlow {
 public:
  // Larger than any finite cut: the caller keeps finite sums below 2^60.
  static constexpr int64_t kInfinite = int64_t{1} << 61;

  // A network of `node_count` nodes and no arcs.
  explicit MaxFlow(int node_count);

  // Returns the arc's number, for SetCapacity. All arcs must be added before
  // Build.
  int AddArc(int from, int to, int64_t capacity);
  // Indexes the arcs; call it once, after the last AddArc.
  void Build();
  void SetCapacity(int arc, int64_t capacity) { capacity_[arc] = capacity; }

  // Returns the value of a minimum cut; at least kInfinite if every cut is
  // infinite. Always starts from zero flow.
  int64_t Solve(int source, int sink);

  // After Solve: whether the node is on the source side of the minimum cut
  // closest to the source.
  bool OnSourceSide(int node) const { return level_[node] >= 0; }

  // Arcs visited since construction, in both directions.
  int64_t ticks() const { return ticks_; }

 private:
  struct Half {
    int32_t to;
    int32_t reverse;  // index of the other half
    int64_t residual;
  };

  // Computes each node's distance from the source in the residual network.
  // Returns whether the sink can be reached.
  bool Levels(int source, int sink);
  // Sends one blocking flow along the levels; returns its value.
  int64_t Augment(int source, int sink);

  int node_count_;
  std::vector<int32_t> from_, to_;
  std::vector<int64_t> capacity_;
  std::vector<int32_t> begin_;  // by node, into halves_
  std::vector<Half> halves_;
  std::vector<int32_t> half_of_;  // by arc: its forward half
  std::vector<int32_t> level_, next_, queue_, path_;
  int64_t ticks_ = 0;
};

}  // namespace reprise::planner
