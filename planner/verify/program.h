// SPDX-License-Identifier: Apache-2.0
//
// The program of several windows, rebuilt in integers: kWindows of
// certificate.h.
//
// Windows t_1 < ... < t_K are first runs of ops; segment k lasts from that of
// t_k to that of t_(k+1), the last one to the end. For every schedule in base
// order:
//
//   S[k,v]  v, made before t_k, is present while t_k first runs
//   R[k,o]  o, before t_k, runs again inside segment k
//   A[k,o]  o runs again inside segment k, or in a later one up to which every
//           window has a column for o
//   P[k,v]  v is present throughout segment k
//
//   minimise  sum of times of R   subject to rows  sum >= constant
//   (memory)   room of t_k >= sum bytes S + sum state A
//   (first)    S[k,u] + R[k,maker u] >= 1            segment k first uses u
//   (future)   S[k,u] + A[k,maker u] >= 1            t_k or later uses u
//   (carry)    S[k,v] + R[k,maker v] >= S[k+1,v]     v made before t_k
//   (again)    S[k,u] + R[k,maker u] >= R[k,o]       o reads u
//   (againA)   S[k,u] + A[k,maker u] >= A[k,o]
//   (later)    R[k,o] + A[k+1,o] >= A[k,o]
//   (version)  sum of S[k,.] of the versions of a storage <= 1
//   (runs)     sum over k of R[k,o] <= max_runs - 1
//   (stays)    P[k,v] >= S[k+1,v] - R[k,maker v]     v made by t_k or before
//   (inside)   budget - static >= sum bytes P[k,.] + x * (what o touches)
//   (rounded)  floor(room of t_k / g) >= sum floor(bytes / g) S
//
// (inside) rows are for one op o in one segment: x = 1 if o first runs in it,
// otherwise x = R[k,o]; storages that o touches are not in the sum. A value
// that is always present, or has no bytes, has no column: it counts as 1.
//
// Why each row is necessary. Segments are disjoint in time, so the objective
// counts no run twice, and is at most the time a schedule adds. While t_k first
// runs, what is present shares the budget with its outputs and workspace; a
// generator's state is stored from the first run of its op to its last
// (memory). The first use of u inside segment k finds a u that has been present
// since t_k or was made inside the segment (first, again). What is present at
// t_(k+1) was present at t_k or was made in between (carry). (future) says the
// same about everything after t_k as one segment; it adds nothing for whole
// columns, but without it fractional re-runs in different segments share one
// saved fraction, and several windows prove less than one. A storage has one
// version at a time (version). If v is present while t_(k+1) first runs and its
// maker did not run again in segment k, it was present throughout: P = 1 only
// then, and while o runs, all of those share the budget with what o touches
// (inside). So a program that has no solution proves that no schedule fits. If S
// is whole, the least R and A are whole: so trees branch on S first.
//
// (rounded) is (memory) divided by a unit g, with everything rounded down: it
// holds since S is whole (Chvátal, Edmonds polytopes and a hierarchy of
// combinatorial problems, 1973). The units of a window are up to eight sizes of
// its values, those first whose values have most bytes together. Large tensors
// of a network tend to be multiples of each other, so that the room is seldom
// used to its last byte: these rows say by how much.
//
// Any vector of multipliers y >= 0 of the rows proves
//
//   cost >= y * constants + sum over columns of min over its range of
//           (time - y * column) * x
//
// (Neumaier and Shcherbina, Safe bounds in linear and mixed-integer
// programming, 2004); evaluated here in 128-bit integers, with every operation
// checked. With all times 0, a sum above 0 proves that the rows have no
// solution. The same sum shows which columns need not be tried with one of
// their values (Narrow): that value alone would add the claimed time. What the
// rows then imply follows by propagation (domain.h).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "planner/verify/facts.h"

namespace reprise::verify {

class Program {
 public:
  struct Entry {
    int32_t column;
    int64_t value;
  };

  // Builds the program of the windows `at`, ascending; `inside_rows` may be in
  // any order. INVALID_ARGUMENT if they do not match the graph.
  static StatusOr<Program> Build(const Facts& facts, int64_t budget_bytes,
                                 std::span<const OpId> at, bool inside,
                                 std::span<const InsideRow> inside_rows);

  int column_count() const { return static_cast<int>(cost_ns_.size()); }
  int row_count() const { return static_cast<int>(least_.size()); }
  int64_t CostNs(int32_t column) const { return cost_ns_[column]; }
  // Returns whether it is a column of S: if those are integral, the others can
  // be.
  bool IsKept(int32_t column) const { return is_kept_[column] != 0; }
  std::span<const Entry> Row(int32_t row) const {
    return {entries_.data() + begin_[row], entries_.data() + begin_[row + 1]};
  }
  int64_t Least(int32_t row) const { return least_[row]; }
  // Returns whether the row is in bytes: (memory) or (inside).
  bool InBytes(int32_t row) const { return in_bytes_[row] != 0; }
  // True if some window has no room for what is always present.
  bool impossible() const { return impossible_; }

  // Returns the least added time that a leaf proves if columns are within [low,
  // high]; kNothing if no column vector satisfies the rows. INVALID_ARGUMENT if
  // a number is out of range.
  static constexpr int64_t kNothing = int64_t{1} << 62;
  StatusOr<int64_t> AddedNs(const Node& leaf, std::span<const uint8_t> low,
                            std::span<const uint8_t> high) const;

  // Returns the columns that must have one value wherever less than
  // `claimed_ns` is added: the multipliers of a narrowing node prove that the
  // other value adds at least that. INVALID_ARGUMENT if a number is out of
  // range.
  struct Fixed {
    int32_t column;
    uint8_t value;
  };
  StatusOr<std::vector<Fixed>> Narrow(const Node& node, int64_t claimed_ns,
                                      std::span<const uint8_t> low,
                                      std::span<const uint8_t> high) const;

  // The columns of S and P of a value, and of R and A of an op, in segment k;
  // negative: none. For those who read them from a solution or a schedule.
  int32_t ColumnOfS(int k, Value v) const { return windows_[k].kept[v]; }
  int32_t ColumnOfP(int k, Value v) const { return windows_[k].stays[v]; }
  int32_t ColumnOfR(int k, OpId o) const { return windows_[k].again[o]; }
  int32_t ColumnOfA(int k, OpId o) const { return windows_[k].later[o]; }
  // Returns whether a solution violates the (inside) row of an op in segment k.
  bool ViolatesInside(int k, OpId o, const std::vector<double>& solution) const;

 private:
  using Wide = __int128;
  // The objective after applying multipliers, in units of 2^-unit ns: a
  // constant, and what each column adds if it is 1.
  struct Reduced {
    int unit = 0;
    Wide constant = 0;
    std::vector<Wide> columns = {};
  };
  // Applies a node's multipliers to the objective. INVALID_ARGUMENT if a number
  // is out of range.
  StatusOr<Reduced> Reduce(const Node& node) const;
  // Returns the minimum over all values within [low, high].
  static StatusOr<Wide> LeastOf(const Reduced& sums,
                                std::span<const uint8_t> low,
                                std::span<const uint8_t> high);

  // In place of a column: always 1, always 0, unknown.
  static constexpr int32_t kOne = -1, kZero = -2, kUnknown = -3;

  struct Segment {
    OpId at = 0, next = 0;  // [at, next)
    bool may_rerun = false;
    std::vector<uint8_t> sure;          // by value
    std::vector<int32_t> kept;          // by value: column of S, or kOne
    std::vector<int32_t> again, later;  // by op: columns of R and A, -1
    std::vector<int32_t> stays;         // by value: column of P, -1
    std::vector<Value> values;          // with a column of S
    int64_t room = 0;
  };

  Program(const Facts& facts, int64_t budget_bytes, bool inside)
      : facts_(&facts), budget_bytes_(budget_bytes), inside_(inside) {}

  // Finds the values that are always present at the segment's window, and the
  // room that they leave.
  void FindSure(Segment& segment) const;
  // Adds the columns of window k; those of window k + 1 must exist already.
  void AddColumns(int k);
  // Adds the rows of window k, except (runs) and (inside).
  void AddRows(int k);
  // Adds the (runs) rows.
  void AddRunRows();
  // Adds the (rounded) rows of a window.
  void AddRoundedRows(const Segment& segment);
  // Adds the (inside) row of an op in segment k.
  void AddInsideRow(int k, OpId o);
  // Adds a column; `kept`: a column of S. Returns its number.
  int32_t NewColumn(int64_t cost_ns, bool kept);
  // S[k,v]: a column, kOne, or kUnknown.
  int32_t Kept(const Segment& segment, Value v) const;
  // R or A of the maker of v: a column, kZero, or kUnknown.
  int32_t Remade(const Segment& segment, bool later, Value v) const;
  // Adds S + remade - minus >= least, unless it always holds.
  void AddPresence(const Segment& segment, bool later, Value v, int32_t minus,
                   int64_t least);
  void Add(int32_t column, int64_t value) {
    entries_.push_back({column, value});
  }
  // Ends the current row.
  void Close(int64_t least, bool in_bytes);
  // Returns the bytes that o touches, including workspace, and marks its
  // storages.
  int64_t Touched(OpId o, std::vector<uint8_t>& marks) const;
  // Returns whether v may be present throughout segment k.
  bool MayStay(int k, Value v) const;

  const Facts* facts_;
  int64_t budget_bytes_;
  bool inside_;
  bool impossible_ = false;
  std::vector<Segment> windows_;
  std::vector<int64_t> cost_ns_;
  std::vector<uint8_t> is_kept_;
  std::vector<int64_t> begin_ = {0};
  std::vector<Entry> entries_;
  std::vector<int64_t> least_;
  std::vector<uint8_t> in_bytes_;
};

}  // namespace reprise::verify
