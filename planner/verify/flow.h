// SPDX-License-Identifier: Apache-2.0
//
// A flow through a network; its value is a lower bound of every cut (weak
// duality). The bound does not depend on how the flow was found: `Value` checks
// every capacity and every node, in 128-bit integers.
//
// The flow is found by blocking flows over levels counted from the sink.
#pragma once

#include <cstdint>
#include <vector>

namespace reprise::verify {

using Wide = __int128;

class Flow {
 public:
  // Larger than twice the sum of all finite capacities.
  static constexpr Wide kInfinite = Wide{1} << 126;

  explicit Flow(int nodes) : nodes_(nodes) {}

  // Returns the arc's number. All arcs must be added before the first Solve.
  int AddArc(int from, int to);
  void SetCapacity(int arc, Wide capacity) { capacity_[arc] = capacity; }

  // Returns the value of a flow from source to sink after checking every arc
  // and node; kInfinite if there is a path without a finite arc; -1 if what was
  // found is not a flow.
  Wide Solve(int source, int sink);

 private:
  // Indexes the arcs by node.
  void Index();
  // Computes each node's distance to the sink along arcs with capacity left.
  // Returns whether the source can reach it.
  bool FindLevels(int source, int sink);
  // Sends flow along one level graph; returns true if some of it is infinite.
  bool Send(int source, int sink);
  // Checks every arc and node of the flow; returns its value, or -1.
  Wide Value(int source, int sink) const;
  // Returns the capacity left on an arc, in the direction of `end`.
  Wide Left(int32_t end) const {
    const int32_t arc = end >> 1;
    return (end & 1) != 0 ? sent_[arc] : capacity_[arc] - sent_[arc];
  }
  // Returns the node to which `end` leads.
  int Head(int32_t end) const {
    return (end & 1) != 0 ? from_[end >> 1] : to_[end >> 1];
  }

  int nodes_;
  std::vector<int32_t> from_, to_;
  std::vector<Wide> capacity_, sent_;
  // By node: arcs that leave it, as 2 * arc forward and 2 * arc + 1 backward.
  std::vector<int32_t> begin_, ends_;
  std::vector<int32_t> level_, current_, queue_;
};

}  // namespace reprise::verify
