// SPDX-License-Identifier: Apache-2.0
//
// The bound of several windows at once, as a mixed-integer program.
//
// Windows t_1 < ... < t_K, ordered by first executions. Segment k lasts from
// the first execution of t_k to that of t_(k+1), the last one to the end. Any
// schedule defines these binaries:
//
//   S[k,v]  v is present while t_k first runs (v made before t_k)
//   R[k,o]  o (before t_k) runs again inside segment k
//   A[k,o]  o runs again inside segment k or, for what window k+1 has not yet,
//           inside a later one: max(R[k,o], A[k+1,o]), where k+1 has them
//
//   minimise  sum c(o) R[k,o]   subject to
//   (memory)  sum bytes(v) S[k,v] + sum state(o) A[k,o]
//                 <= budget - static - writes(t_k) - workspace(t_k) - forced
//   (first)   S[k,u] + R[k,maker u] >= 1      u needed by an op that first runs
//                                             in segment k (the last: or at the
//                                             end), u made before t_k
//   (again)   R[k,o] <= S[k,u] + R[k,maker u]         u in need(o)
//   (carry)   S[k+1,v] <= S[k,v] + R[k,maker v]       v made before t_k
//   (future)  S[k,u] + A[k,maker u] >= 1      u needed at t_k or later
//             A[k,o] <= S[k,u] + A[k,maker u]         u in need(o)
//             A[k,o] <= R[k,o] + A[k+1,o]
//   (version) sum over versions v of one storage of S[k,v] <= 1
//   (runs)    sum over k of R[k,o] <= max_runs - 1
//
// Why each row is necessary. Segments are disjoint in time, so sum c R counts
// no run twice, and the objective is at most the time a schedule adds. While
// t_k first runs, what is present shares the budget with t_k's own outputs and
// workspace; a generator state is stored from the first run of its op to its
// last (memory). The first use of u inside segment k finds a u that has been
// present since t_k or was made inside the segment (first, again). What is
// present at t_(k+1) was present at t_k or was made in between (carry).
// (future) says the same about everything after t_k as one segment, with A = 1
// for what runs again in it. It adds nothing to the program in binaries; but
// without it, fractional re-runs in different segments share one saved
// fraction, and the LP of several windows falls below that of one. A storage
// has one version at a time (version). Memory between windows is ignored. So
// this is a relaxation: its optimum, and any bound of it, is a bound; if it has
// no solution, no schedule fits. If S is integral, the least R and A are
// integral: so only S is declared integer.
//
// Inside segments. On request, the program also models the memory between
// windows. R[k,t_k] is then a column too: t_k runs a second time in its own
// segment. For every segment k but the last, and v made by t_k or before,
//
//   P[k,v]  >= S[k+1,v] - R[k,maker v]
//   (inside)  sum bytes(v) P[k,v] + x (bytes(N(o)) + workspace(o))
//                 <= budget - static
//             over v of no storage in N(o), the storages o reads, writes or
//             mutates; x = R[k,o], or x = 1 if o, not t_k, always first runs in
//             segment k
//
// Why (inside) is necessary. If v is present while t_(k+1) first runs and its
// maker did not run again in segment k, v was never made after t_k's first run
// began, so it was present throughout: P = 1 only then. While o runs in the
// segment, all of those, N(o) and the workspace share the budget. If o does not
// run again (x = 0), all v with P = 1 are present at t_(k+1) and fit the
// budget. (Every maker that could bring v back has a column R[k,.] then.) Only
// rows that a solution violates are added, for one op in every segment at a
// time: most never matter.
//
// Building is O(K (ops + arities)).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/bounds/mip.h"
#include "planner/bounds/window_bound.h"
#include "planner/model/plan.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Limits of a solve. All are deterministic.
struct ManyWindowsLimits {
  // Solve with integers relaxed: a smaller bound, sooner; no keep-sets.
  bool relaxed = false;
  int most_nodes = 200;
  int most_rounds = 6;  // of rows inside segments
  // Added time of the best known plan; solutions that add as much are not of
  // interest. Negative: no plan is known.
  int64_t incumbent_ns = -1;
  std::function<bool()> should_stop = {};
};

// Everything in it was proven by solves that ended: an interrupted solve
// (mip.h) adds nothing, and the bound of the previous round stays, since each
// round is a relaxation of the next.
struct ManyWindowsResult {
  bool solved = false;
  bool finished = false;    // more effort would not prove more
  bool impossible = false;  // no schedule within the budget
  int64_t added_ns = 0;     // proven
  // What the solution that was found keeps at each window, and what it runs
  // again in the following segment.
  bool has_keep_sets = false;
  std::vector<KeepSet> keep_sets = {};
  int64_t ticks = 0;
};

class ManyWindows {
 public:
  // `windows` must be ascending without duplicates. `inside` includes the
  // memory inside segments, which pays if windows are neighbours.
  ManyWindows(const Problem& problem, std::vector<OpId> windows,
              int64_t budget_bytes, bool inside = false);

  // Solves the program; with `inside`, adds the rows that solutions violate, in
  // rounds.
  ManyWindowsResult Solve(const ManyWindowsLimits& limits);

  // For tests: the program, and the columns of S, R and A. -1 means no column;
  // S is then 1 if forced, else 0 or irrelevant.
  const MipProgram& program() const { return program_; }
  // Costs of the program per ns.
  double CostScale() const { return cost_scale_; }
  // Returns the cost of a MIP's root (preprocessing, cuts, heuristics) in
  // ticks.
  int64_t RootTicks() const;
  int32_t ColumnOfS(int k, ValueId v) const { return windows_[k].saved[v]; }
  int32_t ColumnOfR(int k, OpId o) const { return windows_[k].again[o]; }
  int32_t ColumnOfA(int k, OpId o) const { return windows_[k].later[o]; }
  int32_t ColumnOfP(int k, ValueId v) const {
    return windows_[k].stays.empty() ? -1 : windows_[k].stays[v];
  }
  // Adds the (inside) rows of each op that `solution` violates in some segment;
  // null: all rows. Returns how many were added.
  int AddInsideRows(const std::vector<double>* solution);

 private:
  struct Window {
    OpId at = 0;
    OpId next = 0;                      // the next window, or the end
    std::vector<uint8_t> forced;        // by value: present while `at` runs
    std::vector<int32_t> saved;         // by value: column, -1: none
    std::vector<int32_t> again, later;  // by op: column, -1: none
    std::vector<int32_t> stays;         // by value: column of P, -1: none
    std::vector<uint8_t> inside;        // by op: has its (inside) row
    std::vector<ValueId> values;        // those with a column of S
    bool may_rerun = true;              // re-runs may happen in this segment
    int64_t room_bytes = 0;
  };

  // Returns the added time that a proven cost of the program stands for.
  int64_t AddedNs(double bound) const;
  // Returns the cost of a solve in ticks.
  int64_t Ticks(const MipAnswer& answer) const;
  // Adds the columns of window k; those of window k + 1 must exist already.
  void AddColumns(int k);
  // Adds the rows of window k, except (inside).
  void AddRows(int k);
  // Returns whether v, if window k+1 has it, stays through segment k unless its
  // maker runs again there.
  bool MayStay(int k, ValueId v) const;
  // Adds the (inside) row of an op in segment k. Returns false if it exists, or
  // if the op does not run there.
  bool AddInsideRow(int k, OpId o);
  // Returns whether a solution violates the (inside) row of an op in segment k.
  bool Violates(int k, OpId o, const std::vector<double>& solution) const;
  // Marks the storages of N(o); returns their bytes plus the workspace.
  int64_t MarkStorages(OpId o, std::vector<uint8_t>& marked) const;
  // Adds the row S[k,v] + (R or A)[k,maker v] - x >= bound, with x a column or
  // -1; no row if v is always present.
  void AddPresence(const Window& window, bool later, ValueId v, int32_t x,
                   double bound);
  // Returns -1 if v cannot be recomputed.
  int32_t RerunColumn(const Window& window, bool later, ValueId v) const;

  const Problem& problem_;
  const bool inside_;
  const int64_t inside_bytes_;  // budget less static memory
  std::vector<Window> windows_;
  bool out_of_room_ = false;
  double cost_scale_ = 1, byte_scale_ = 1;
  MipProgram program_;
};

}  // namespace reprise::planner
