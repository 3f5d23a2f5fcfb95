// SPDX-License-Identifier: Apache-2.0
//
// Reduces a step graph to a smaller one with the same optimum, and translates
// results back.
//
// Every rule preserves the least time at every budget, so plan, bound and proof
// of impossibility of the reduced graph are those of the original. For each
// rule, one direction of the proof turns a schedule of the original into one of
// the reduced graph that is as fast and has no higher peak; the other direction
// turns it back. Unless said otherwise, storages here have one version and are
// not pinned.
//
// empty     A storage of 0 bytes constrains nothing: it leaves the graph. Back:
//           it stays present from its first life on, at no cost.
// unread    A storage that no op reads and that is not required is workspace of
//           its maker: it is allocated whenever the maker runs, and may go
//           right after. (Not if the program holds it.)
// twins     Storages with the same maker and the same readers, both required or
//           neither, and held alike, become one with the sum of their bytes.
//           They are made and read at the same moments, so one may live exactly
//           as long as the other is read.
// sinks     An op without outputs never runs again. If everything it reads is
//           present after the first run of the op before it in base order, or
//           before that of the op after it, and its workspace is no larger than
//           what that run adds, it can always run there without raising memory.
//           Its time moves to an op at the end that runs once. Re-runs between
//           the two then come after both, so whatever may precede the one must
//           be allowed to precede the other.
// in place  An op that mutates s (and otherwise reads only what the previous op
//           reads), directly after the op that writes only s, with no more
//           workspace: the two become one op. Only the second reads the old
//           version, and destroys it, so their runs come in pairs. Moving the
//           second up to the first leaves the same bytes present in between,
//           while all inputs of the second are there; memory is highest at the
//           first. Both count towards the executor's time per re-run
//           (Op::launches). (Not if the program holds s for longer.)
//
// Not done: merging ops whose input dies between them (x -> y -> z, y no
// smaller than x and z). The merged op would have to hold x and y, then y and
// z, and neither a workspace nor a set of reads can express that.
//
// For executors of free schedules. O(rounds * arities); a few rounds.
#pragma once

#include <span>
#include <vector>

#include "planner/model/plan.h"
#include "planner/model/problem.h"

namespace reprise::planner {

struct ReduceOptions {
  bool empty = true;
  bool unread = true;
  bool twins = true;
  bool sinks = true;
  bool in_place = true;
};

class Reduction {
 public:
  // The graph of the problem must outlive the reduction.
  Reduction(const Problem& problem, const ReduceOptions& options = {});

  // False if no rule applies; graph() is then empty.
  bool changed() const { return changed_; }
  const StepGraph& graph() const { return graph_; }
  // Returns whether the reduction removes at least one op or storage in fifty;
  // otherwise planning for another graph does not pay.
  bool IsWorthIt() const;

  // Returns the original's execs for a list of execs of graph().
  std::vector<OpId> Expand(std::span<const OpId> execs) const;
  // Returns the op of the original whose window is equivalent to this op's; and
  // the same for several, ascending.
  OpId Expand(OpId op) const;
  std::vector<OpId> ExpandWindows(const std::vector<OpId>& windows) const;
  // Expresses the reason for a refusal in terms of the original.
  Infeasible Expand(Infeasible infeasible) const;

 private:
  friend class Reducer;
  // One op of the original that runs with an op of graph().
  struct Piece {
    OpId op = kNoOp;
    bool first_only = false;  // only with its first run
  };

  const Problem& original_;
  bool changed_ = false;
  StepGraph graph_;
  std::vector<int32_t> piece_begin_;  // CSR by op of graph()
  std::vector<Piece> pieces_;
  std::vector<StorageId> storage_;  // by storage of graph(): the original
  std::vector<StorageId> twin_of_;  // by original storage; -1: of none
};

// Returns whether the reduced graph may be searched for this request: not for
// named plans, for executors of kind `once`, nor if an op has replay windows,
// whose ends could be ops that leave the graph.
bool MayReduce(const StepGraph& graph, const Request& request);

}  // namespace reprise::planner
