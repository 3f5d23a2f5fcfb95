// SPDX-License-Identifier: Apache-2.0
//
// A flow through a network, and its value as a lower bound of every cut (weak
// duality). How the flow is found does not matter: `Value` checks every
// capacity and every node before it counts, in 128-bit integers.
//
// Found by blocking flows over levels counted from the sink.
#pragma once

#include <cstdint>
#include <vector>

namespace reprise::verify {

using Wide = __int128;

class Flow {
 public:
  // Larger than the sum of all finite capacities, which stays below half.
  static constexpr Wide kInfinite = Wide{1} << 126;

  explicit Flow(int nodes) : nodes_(nodes) {}

  // Returns the arc's number. All arcs come before the first Solve.
  int AddArc(int from, int to);
  void SetCapacity(int arc, Wide capacity) { capacity_[arc] = capacity; }

  // The value of a flow from source to sink whose every arc and node was
  // checked; kInfinite where a path without a finite arc exists. -1: what was
  // found is not a flow.
  Wide Solve(int source, int sink);

 private:
  void Index();
  bool FindLevels(int source, int sink);
  // Sends flow along one level graph; true where some is infinite.
  bool Send(int source, int sink);
  Wide Value(int source, int sink) const;
  Wide Left(int32_t end) const {
    const int32_t arc = end >> 1;
    return (end & 1) != 0 ? sent_[arc] : capacity_[arc] - sent_[arc];
  }
  int Head(int32_t end) const {
    return (end & 1) != 0 ? from_[end >> 1] : to_[end >> 1];
  }

  int nodes_;
  std::vector<int32_t> from_, to_;
  std::vector<Wide> capacity_, sent_;
  // By node: ends of arcs that leave it, 2 * arc forward, 2 * arc + 1 back.
  std::vector<int32_t> begin_, ends_;
  std::vector<int32_t> level_, current_, queue_;
};

}  // namespace reprise::verify
