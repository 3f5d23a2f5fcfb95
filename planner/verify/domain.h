// SPDX-License-Identifier: Apache-2.0
//
// What the columns of a program may be on the way to a leaf of a tree: 0, 1 or
// either. Whatever is fixed, a row that holds with one value of a column only
// fixes that one too, and so on (bounds propagation); where a row cannot hold
// at all, nothing is left. The order of the rows does not matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/verify/program.h"

namespace reprise::verify {

class Domain {
 public:
  // The program outlives it.
  explicit Domain(const Program& program);

  // Fixes a column, which is one of the program.
  void Fix(int32_t column, uint8_t value);
  // Fixes what a narrowing node proves (Program::Narrow).
  Status Narrow(const Node& node, int64_t claimed_ns);

  // What has been fixed so far, in turn; and back to as much of it.
  std::span<const int32_t> fixed() const { return fixed_; }
  void UndoTo(size_t count);

  // Nothing obeys the rows here.
  bool empty() const { return empty_; }
  const std::vector<uint8_t>& low() const { return low_; }
  const std::vector<uint8_t>& high() const { return high_; }

 private:
  void Set(int32_t column, uint8_t value);
  void Propagate();
  void Look(int32_t row);

  const Program& program_;
  std::vector<uint8_t> low_, high_;  // by column
  std::vector<int32_t> fixed_;
  // Rows by column, in CSR.
  std::vector<int32_t> begin_, rows_;
  std::vector<int32_t> waiting_;     // rows to look at
  std::vector<uint8_t> is_waiting_;  // by row
  bool empty_ = false;
  size_t empty_at_ = 0;  // what was fixed when it became so
};

}  // namespace reprise::verify
