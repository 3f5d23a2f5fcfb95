// SPDX-License-Identifier: Apache-2.0
#include "planner/verify/domain.h"

namespace reprise::verify {

Domain::Domain(const Program& program)
    : program_(program),
      low_(program.column_count(), 0),
      high_(program.column_count(), 1),
      begin_(program.column_count() + 1, 0),
      is_waiting_(program.row_count(), 1) {
  for (int32_t i = 0; i < program.row_count(); ++i) {
    for (const Program::Entry& entry : program.Row(i)) {
      ++begin_[entry.column + 1];
    }
    waiting_.push_back(i);
  }
  for (int32_t j = 0; j < program.column_count(); ++j) {
    begin_[j + 1] += begin_[j];
  }
  rows_.resize(begin_.back());
  std::vector<int32_t> next = begin_;
  for (int32_t i = 0; i < program.row_count(); ++i) {
    for (const Program::Entry& entry : program.Row(i)) {
      rows_[next[entry.column]++] = i;
    }
  }
  Propagate();
}

void Domain::Fix(int32_t column, uint8_t value) {
  Set(column, value);
  Propagate();
}

Status Domain::Narrow(const Node& node, int64_t claimed_ns) {
  ASSIGN_OR_RETURN(const std::vector<Program::Fixed> fixed,
                   program_.Narrow(node, claimed_ns, low_, high_));
  for (const Program::Fixed& one : fixed) Set(one.column, one.value);
  Propagate();
  return OkStatus();
}

void Domain::UndoTo(size_t count) {
  if (empty_ && count <= empty_at_) empty_ = false;
  while (fixed_.size() > count) {
    low_[fixed_.back()] = 0;
    high_[fixed_.back()] = 1;
    fixed_.pop_back();
  }
}

void Domain::Set(int32_t column, uint8_t value) {
  if (empty_) return;
  if (low_[column] == high_[column]) {
    if (low_[column] == value) return;
    empty_ = true;
    empty_at_ = fixed_.size();
    return;
  }
  low_[column] = high_[column] = value;
  fixed_.push_back(column);
  for (int32_t k = begin_[column]; k < begin_[column + 1]; ++k) {
    if (is_waiting_[rows_[k]] != 0) continue;
    is_waiting_[rows_[k]] = 1;
    waiting_.push_back(rows_[k]);
  }
}

void Domain::Propagate() {
  while (!waiting_.empty()) {
    const int32_t row = waiting_.back();
    waiting_.pop_back();
    is_waiting_[row] = 0;
    if (!empty_) Look(row);
  }
}

void Domain::Look(int32_t row) {
  // How much the row can exceed its lower bound.
  __int128 spare = -static_cast<__int128>(program_.Least(row));
  for (const Program::Entry& entry : program_.Row(row)) {
    const bool one =
        entry.value > 0 ? high_[entry.column] != 0 : low_[entry.column] != 0;
    if (one) spare += entry.value;
  }
  if (spare < 0) {
    empty_ = true;
    empty_at_ = fixed_.size();
    return;
  }
  for (const Program::Entry& entry : program_.Row(row)) {
    if (low_[entry.column] == high_[entry.column]) continue;
    const __int128 size = entry.value;
    if ((size > 0 ? size : -size) > spare) Set(entry.column, entry.value > 0);
  }
}

}  // namespace reprise::verify
