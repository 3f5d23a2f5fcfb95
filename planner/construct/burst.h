// SPDX-License-Identifier: Apache-2.0
//
// Bursts: the ops that run again between two ops of the base order, to
// recompute the wanted values from those in memory.
//
// Two of the searches go *backwards* over sets of values: undoing the last exec
// m of a burst leaves X - make(m) + need(m), and a set that is present is a
// goal. Only sets that fit the budget are explored (compare pebble.h). The
// execs may be in any order; in a depth-first burst the inputs of waiting ops
// would accumulate.
//
// - AllAtOnce: each absent ancestor once, in base order. O(ops of the burst *
//   values they need).
// - Cheapest: explores sets by time so far plus the time of the makers of what
//   is missing (A*, Hart, Nilsson, Raphael 1968, with a weight of 2), up to
//   `most_states` sets.
// - Smallest: of all sets one exec further back, only the few smallest are
//   explored (a beam); at most 20 steps per op of the graph.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "planner/construct/present.h"
#include "planner/model/effort.h"
#include "planner/model/problem.h"

namespace reprise::planner {

using ValueSet = std::vector<ValueId>;  // sorted

// In larger graphs the beam costs more than it gains.
inline constexpr int kMostBeamOps = 256;

struct Burst {
  std::vector<OpId> ops;           // in the order they run
  std::vector<ValueSet> survives;  // by op: values present before it that
                                   // must stay: its inputs, and what is wanted
                                   // after it
  int64_t peak_bytes = 0;          // of these alone; AllAtOnce only
};

// Searches for bursts before base op `at` of a schedule under construction. Its
// arguments must outlive it; `runs` is the number of execs of each op so far.
class BurstSearch {
 public:
  BurstSearch(const Problem& problem, const std::vector<int32_t>& runs,
              int64_t budget_bytes, Effort& effort, int64_t last_tick);

  // Sets the starting point: what is present now, before base op `at`.
  void StandAt(Present& present, OpId at);

  // Returns nothing if an ancestor may not run again. May exceed the budget.
  std::optional<Burst> AllAtOnce(const ValueSet& wanted,
                                 const std::set<ValueId>& keep);
  // Returns the burst of least time, as far as the weighted search goes;
  // nothing if none fits the budget or the limits are reached.
  std::optional<Burst> Cheapest(const ValueSet& wanted, int most_states);
  // `keep_present`: values that are present now are not recomputed.
  std::optional<Burst> Smallest(const ValueSet& wanted, bool keep_present);

 private:
  struct Node {
    ValueSet set;
    int32_t parent;
    OpId undone;  // exec between this set and its parent's
    int64_t time_ns;
    bool closed;
  };

  bool Over() const { return effort_.Over() || effort_.ticks() > last_tick_; }
  // Returns whether every value of the set is present now.
  bool AllPresent(const ValueSet& set) const;
  // Returns whether m may be the last exec before a set: it may run again, and
  // what it makes may be recomputed.
  bool MayUndo(OpId m, const ValueSet& after) const;
  // Computes the set before m runs. Returns false if versions contradict each
  // other.
  bool Undo(OpId m, const ValueSet& after, ValueSet& before) const;
  // Returns the bytes while m runs, with `before` and its outputs present.
  int64_t BytesWhile(OpId m, const ValueSet& before, const ValueSet& after);
  // Returns the time of the makers of what is missing: each must run at least
  // once.
  int64_t MissingTime(const ValueSet& set);
  // Computes the ancestors of every op.
  void FindAncestors();
  // Returns the burst that leads from a present set to the wanted one.
  static Burst Path(const std::vector<Node>& nodes, int32_t index);

  const Problem& problem_;
  const std::vector<int32_t>& runs_;
  const int64_t budget_bytes_;
  Effort& effort_;
  const int64_t last_tick_;
  Present* present_ = nullptr;
  OpId at_ = 0;  // the base op that the burst comes before
  // Bytes that no burst can free: held, or not recomputable.
  int64_t retained_bytes_ = 0;
  std::vector<uint8_t> retained_;  // by storage
  std::vector<OpId> makers_;
  std::vector<StorageId> scratch_;
  std::vector<std::vector<uint64_t>> ancestors_;  // by op, one bit per op
};

}  // namespace reprise::planner
