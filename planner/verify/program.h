// SPDX-License-Identifier: Apache-2.0
//
// The program of several windows, rebuilt in integers: kWindows of
// certificate.h.
//
// Windows t_1 < ... < t_K are first runs of ops; segment k lasts from t_k's to
// that of t_(k+1), the last to the end. Of every schedule in base order:
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
//
// (inside) rows stand for one op o in one segment: x = 1 where o first runs in
// it, x = R[k,o] else; storages that o touches are left out of the sum. A value
// that is surely present, or has no bytes, has no column: it counts as 1.
//
// A vector of multipliers y >= 0 of the rows proves, whatever it is,
//
//   cost >= y * constants + sum over columns of min over its range of
//           (time - y * column) * x
//
// (Neumaier and Shcherbina, Safe bounds in linear and mixed-integer
// programming, 2004); evaluated here in 128-bit integers, every operation
// checked. With all times 0, a sum above 0 proves that nothing obeys the rows.
// The same sum says which columns need not be looked at with one of their
// values (Narrow): with it alone it is what is claimed already. What rows leave
// no choice of follows by itself (domain.h).
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

  // `at` ascending, `inside_rows` in any order. INVALID_ARGUMENT where they
  // are not of this graph.
  static StatusOr<Program> Build(const Facts& facts, int64_t budget_bytes,
                                 std::span<const OpId> at, bool inside,
                                 std::span<const InsideRow> inside_rows);

  int column_count() const { return static_cast<int>(cost_ns_.size()); }
  int row_count() const { return static_cast<int>(least_.size()); }
  int64_t CostNs(int32_t column) const { return cost_ns_[column]; }
  // A column of S: where those are whole, the others may be.
  bool IsKept(int32_t column) const { return is_kept_[column] != 0; }
  std::span<const Entry> Row(int32_t row) const {
    return {entries_.data() + begin_[row], entries_.data() + begin_[row + 1]};
  }
  int64_t Least(int32_t row) const { return least_[row]; }
  // In bytes: (memory) and (inside).
  bool InBytes(int32_t row) const { return in_bytes_[row] != 0; }
  // Some window has no room for what is surely present.
  bool impossible() const { return impossible_; }

  // Least added time that a leaf proves when columns lie within [low, high];
  // kNothing where no column vector obeys the rows. INVALID_ARGUMENT where a
  // number is out of range.
  static constexpr int64_t kNothing = int64_t{1} << 62;
  StatusOr<int64_t> AddedNs(const Node& leaf, std::span<const uint8_t> low,
                            std::span<const uint8_t> high) const;

  // The columns that have but one value wherever less than `claimed_ns` is
  // added: the multipliers of a narrowing node prove that the other one adds
  // as much. INVALID_ARGUMENT where a number is out of range.
  struct Fixed {
    int32_t column;
    uint8_t value;
  };
  StatusOr<std::vector<Fixed>> Narrow(const Node& node, int64_t claimed_ns,
                                      std::span<const uint8_t> low,
                                      std::span<const uint8_t> high) const;

  // What certifiers read off a solution: the value's column of S in segment k,
  // the op's column of R; negative: none.
  int32_t ColumnOfS(int k, Value v) const { return windows_[k].kept[v]; }
  int32_t ColumnOfR(int k, OpId o) const { return windows_[k].again[o]; }
  // The ops whose (inside) row in segment k a solution violates.
  bool ViolatesInside(int k, OpId o, const std::vector<double>& solution) const;

 private:
  using Wide = __int128;
  // What multipliers make of the objective, in units of 2^-unit ns: a constant
  // and what each column adds where it is 1.
  struct Reduced {
    int unit = 0;
    Wide constant = 0;
    std::vector<Wide> columns = {};
  };
  StatusOr<Reduced> Reduce(const Node& node) const;
  // The least over all values within [low, high].
  static StatusOr<Wide> LeastOf(const Reduced& sums,
                                std::span<const uint8_t> low,
                                std::span<const uint8_t> high);

  // Instead of a column: surely 1, surely 0, not known.
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

  void FindSure(Segment& segment) const;
  void AddColumns(int k);
  void AddRows(int k);
  void AddRunRows();
  void AddInsideRow(int k, OpId o);
  int32_t NewColumn(int64_t cost_ns, bool kept);
  // S[k,v]: a column, kOne, or kUnknown.
  int32_t Kept(const Segment& segment, Value v) const;
  // R or A of the maker of v: a column, kZero, or kUnknown.
  int32_t Remade(const Segment& segment, bool later, Value v) const;
  // S + remade - minus >= least, where that says something.
  void AddPresence(const Segment& segment, bool later, Value v, int32_t minus,
                   int64_t least);
  void Add(int32_t column, int64_t value) {
    entries_.push_back({column, value});
  }
  void Close(int64_t least, bool in_bytes);
  // The storages that o touches: bytes, workspace included, and marks.
  int64_t Touched(OpId o, std::vector<uint8_t>& marks) const;
  // Whether v may be present throughout segment k.
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
