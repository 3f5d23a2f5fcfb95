// SPDX-License-Identifier: Apache-2.0
//
// A smaller step graph with the same optimum, and the way back.
//
// Every rule keeps the least time at every budget, so plan, bound and proof of
// impossible of the reduced graph are those of the original. For each, one
// direction turns a schedule of the original into one of the reduced graph
// that is as fast and has no higher peak, the other one back. Storages here
// have one version and are not pinned, unless said otherwise.
//
// empty     A storage of 0 bytes is no reason for anything: it leaves the
//           graph. Back: it stays present from its first life on, at no cost.
// unread    A storage that nobody reads or requires is workspace of its maker:
//           it is allocated whenever that runs and may go right after.
//           (Not where the program holds it.)
// twins     Storages with the same maker, the same readers, both required or
//           neither, and held alike are one of the sum of their bytes. They
//           are made at the same moments and read at the same moments, so one
//           may live exactly as long as the other is read.
// sinks     An op without outputs never runs again. Where it reads only what
//           the first run of the op before it in base order leaves present, or
//           what that of the op after it finds, and its workspace is no larger
//           than what that run adds, it runs there and then, whatever else is
//           decided: memory is no higher. Its time goes to an op at the end
//           that runs once. Re-runs that came between the two come after both,
//           so what the one may be preceded by the other must be as well.
// in place  An op that mutates s (and else reads only what the op before reads)
//           right after the op that writes nothing but s, with no more
//           workspace: the two are one op. The old version is read by the
//           second alone, which destroys it, so runs come in pairs; and moving
//           the second up to the first leaves the same bytes present in
//           between, while all of the inputs of the second are there. Memory is
//           highest at the first. Both charge the executor's time per re-run
//           (Op::launches). (Not where the program holds s any longer.)
//
// Left out, because neither a workspace nor a set of reads can say what it
// needs: merging ops whose input dies between them (x -> y -> z, y no smaller
// than x and z). The merged op would have to hold x and y, then y and z.
//
// Applies to executors of free schedules. O(rounds * arities); a few rounds.
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

  // False: no rule applies, and graph() is empty.
  bool changed() const { return changed_; }
  const StepGraph& graph() const { return graph_; }
  // Whether enough is gone, one op or storage in fifty, to plan for another
  // graph.
  bool IsWorthIt() const;

  // A list of execs of the original for one of graph().
  std::vector<OpId> Expand(std::span<const OpId> execs) const;
  // The op of the original whose window says what that of this one does; and
  // of several, ascending.
  OpId Expand(OpId op) const;
  std::vector<OpId> ExpandWindows(const std::vector<OpId>& windows) const;
  // A reason in terms of the original.
  Infeasible Expand(Infeasible infeasible) const;

 private:
  friend class Reducer;
  // One op of the original that runs with an op of graph().
  struct Piece {
    OpId op = kNoOp;
    bool first_only = false;  // with its first run alone
  };

  const Problem& original_;
  bool changed_ = false;
  StepGraph graph_;
  std::vector<int32_t> piece_begin_;  // CSR by op of graph()
  std::vector<Piece> pieces_;
  std::vector<StorageId> storage_;  // by storage of graph(): the original
  std::vector<StorageId> twin_of_;  // by original storage; -1: of none
};

// Whether to search the reduced graph: plans by name and executors that run
// regions keep to the original.
bool MayReduce(const Request& request);

}  // namespace reprise::planner
