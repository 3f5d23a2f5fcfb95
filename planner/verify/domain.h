// SPDX-License-Identifier: Apache-2.0
//
// The values that the columns of a program may take on the way to a leaf of a
// tree: 0, 1 or either. After each fix, a row that only holds with one value of
// a column fixes that column too, and so on (bounds propagation); if a row
// cannot hold at all, the domain is empty. The order of the rows does not
// matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/verify/program.h"

namespace reprise::verify {

class Domain {
 public:
  // The program must outlive the domain.
  explicit Domain(const Program& program);

  // Fixes a column to 0 or 1. The column must exist.
  void Fix(int32_t column, uint8_t value);
  // Fixes what a narrowing node proves (Program::Narrow).
  Status Narrow(const Node& node, int64_t claimed_ns);

  // The columns fixed so far, in order. UndoTo unfixes all but the first
  // `count`.
  std::span<const int32_t> fixed() const { return fixed_; }
  void UndoTo(size_t count);

  // True if the rows have no solution here.
  bool empty() const { return empty_; }
  const std::vector<uint8_t>& low() const { return low_; }
  const std::vector<uint8_t>& high() const { return high_; }

 private:
  // Fixes a column, without propagation. The domain becomes empty if the column
  // already has the other value.
  void Set(int32_t column, uint8_t value);
  // Examines rows until no column can be fixed any more.
  void Propagate();
  // Fixes the columns that a row leaves no choice for; empties the domain if
  // the row cannot hold.
  void Look(int32_t row);

  const Program& program_;
  std::vector<uint8_t> low_, high_;  // by column
  std::vector<int32_t> fixed_;
  // Rows by column, CSR.
  std::vector<int32_t> begin_, rows_;
  std::vector<int32_t> waiting_;     // rows to be propagated
  std::vector<uint8_t> is_waiting_;  // by row
  bool empty_ = false;
  size_t empty_at_ = 0;  // number of fixes when it became empty
};

}  // namespace reprise::verify
