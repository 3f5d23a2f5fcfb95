// SPDX-License-Identifier: Apache-2.0
//
// A neighbourhood of a schedule: the re-runs of some ops X are free, all else
// stays as it is, and the best of all such schedules is a small mixed-integer
// program.
//
// The execs of the list that are not re-runs of X are its *slots* p = 0, 1,
// ...; re-runs of X stand just before a slot, several in base order. Of each
// value v that an op of X makes or reads, the *touches* are the slots that make
// it, read it, or before which an op of X may do so. Binaries:
//
//   S[i,v]  v is kept from its touch i to its touch i + 1
//   R[p,o]  o of X runs again before slot p
//
//   minimise  sum time(o) R[p,o]   subject to
//   (need)    S[i-1,v] + R[p,maker v] >= 1        slot p, touch i of v, reads v
//   (again)   R[p,o] <= S[i-1,u] + R[p,maker u]   u in need(o)
//   (carry)   S[i,v] <= S[i-1,v] + R[p,maker v]   where p does not make v
//   (memory)  sum bytes(v) S[i,v] <= budget - what else is alive at p
//   (runs)    sum over p of R[p,o] <= max_runs - runs that stay
//   (version) S[i,v] + R[p,maker v'] <= 1 + R[p,maker v]   v' another version;
//             the last only where v' is older: it is made before v
//
// R[p,o] for an o that reads v stands in (version) for S as well.
// These are the windows of many_windows.h, one at every slot that touches a
// value of X, with everything else fixed; but the sum over S is all there is in
// memory, so that a solution is a schedule and no relaxation. What is alive
// while ops of X run before a slot gets rows of its own where a solution
// violates them: with w a reason for v to be wanted after o (it is read by the
// slot, kept, or read by a later R[p,.]),
//
//   (burst)   sum bytes(v) P[v] + R[p,o] (bytes(make, need o) + workspace(o))
//                 <= budget - what else is alive before p
//             P[v] >= w - R[p,maker v]   (without the last where maker v < o)
//
// Only S is declared whole: the least R and P are whole with it.
//
// Large neighbourhood search is of Shaw, *Using constraint programming and
// local search methods to solve vehicle routing problems*, 1998; the rows are
// those of Checkmate (Jain et al., 2020) for one part of the step.
//
// Building is O(list + columns * arities). X is the caller's, neighbourhood
// search (neighbourhood_search.cc) tries windows of the base order, pairs of
// repeated blocks and what is run again at one place.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "planner/bounds/mip.h"
#include "planner/construct/blocks.h"
#include "planner/model/archive.h"
#include "planner/model/effort.h"
#include "planner/model/exec_list.h"
#include "planner/model/problem.h"

namespace reprise::planner {

struct NeighbourhoodLimits {
  int most_nodes = 20;
  int most_rounds = 4;  // of rows (burst)
  int most_columns = 2500;
  std::function<bool()> should_stop = {};
};

struct NeighbourhoodResult {
  // CBC looked at it to the end: there is nothing better in it. Steers the
  // search and proves nothing; false where it was interrupted.
  bool finished = false;
  // A schedule within the budget, faster than the list it was made of.
  std::vector<OpId> execs;
  int64_t ticks = 0;
  int columns = 0, rows = 0;
};

class Neighbourhood {
 public:
  // True for ops whose re-runs may be free.
  static bool MayFree(const Problem& problem, OpId o);

  // `list` is valid and within the budget. `ops`: ascending, none twice.
  Neighbourhood(const Problem& problem, const ExecList& list,
                std::span<const OpId> ops, int64_t budget_bytes);

  int column_count() const { return program_.column_count(); }
  int row_count() const { return program_.row_count(); }

  NeighbourhoodResult Solve(const NeighbourhoodLimits& limits);

 private:
  using Node = ExecList::Node;
  // Instead of a column: surely 1, surely 0.
  static constexpr int32_t kOne = -1;
  static constexpr int32_t kZero = -2;

  struct Touch {
    int32_t slot = 0;
    bool reads = false, makes = false;  // by the slot's exec
    bool destroys = false;  // it makes another version of the storage
    int32_t kept = kZero;   // column of S up to the next touch
  };
  struct Value {
    ValueId id = kNoValue;
    int64_t bytes = 0;
    std::vector<OpId> others = {};   // of X, that make other versions
    std::vector<OpId> readers = {};  // of X
    std::vector<Touch> touches = {};
  };
  struct FreeOp {
    OpId op = kNoOp;
    std::vector<int32_t> before =
        {};  // slots it may run again before, ascending
    std::vector<int32_t> column = {};  // of R, parallel to `before`
    int64_t stays_count = 0;           // runs that are not free
  };

  void FindSlots();
  void FindValues();
  void FindTouches();
  void FindRoom();
  bool MayStandBefore(OpId o, int32_t slot) const;
  // The column of R[slot,o]; kZero where there is none.
  int32_t RerunColumn(OpId o, int32_t slot) const;
  void AddColumns();
  void AddRows();
  void AddMemoryRows();
  // sum of `plus` - sum of `minus` >= at_least; kZero and kOne are constants.
  void AddRow(std::initializer_list<int32_t> plus,
              std::initializer_list<int32_t> minus, int at_least);
  int64_t Ticks(const MipAnswer& answer) const;
  std::vector<OpId> ExecsOf(const std::vector<double>& solution) const;
  // Rows (burst) where `execs`, made of `solution`, exceed the budget.
  int AddBurstRows(const std::vector<double>& solution);
  bool AddBurstRow(int32_t slot, OpId o);
  int32_t WantedColumn(const Value& value, int32_t slot, OpId o);

  const Problem& problem_;
  const ExecList& list_;
  const int64_t budget_bytes_;
  double cost_scale_ = 1, byte_scale_ = 1;

  std::vector<uint8_t> is_free_;   // by op
  std::vector<int32_t> index_;     // by op: into ops_, -1
  std::vector<FreeOp> ops_;        // ascending
  std::vector<Node> slots_;        // in order of the list; the end is the last
  std::vector<int32_t> slot_of_;   // by node: its own, or the one it precedes
  std::vector<int32_t> value_of_;  // by value: into values_, -1
  std::vector<Value> values_;
  std::vector<int64_t> other_at_;      // by slot: bytes besides values_
  std::vector<int64_t> other_before_;  // the same, just before its exec
  int64_t incumbent_ns_ = 0;           // of the free re-runs of the list
  MipProgram program_;
  std::vector<std::pair<int32_t, OpId>> burst_rows_;
};

struct NeighbourhoodOptions {
  int64_t budget_bytes = 0;
  int64_t ticks = 0;
  uint64_t seed = 1;
  int64_t good_enough_ns = 0;
};

// Improves `execs`, neighbourhood by neighbourhood; every improvement is
// replayed and goes to the archive. Without CBC it does nothing.
void SearchNeighbourhoods(const Problem& problem, const Blocks& blocks,
                          const NeighbourhoodOptions& options,
                          std::vector<OpId>& execs, Archive& archive,
                          Effort& effort);

}  // namespace reprise::planner
