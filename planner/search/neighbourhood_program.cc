// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "planner/search/neighbourhood.h"

namespace reprise::planner {

// ---------------------------------------------------------------------------
// Columns and rows

int32_t Neighbourhood::RerunColumn(OpId o, int32_t slot) const {
  if (is_free_[o] == 0) return kZero;
  const FreeOp& free = ops_[index_[o]];
  const auto at =
      std::lower_bound(free.before.begin(), free.before.end(), slot);
  if (at == free.before.end() || *at != slot) return kZero;
  return free.column[at - free.before.begin()];
}

void Neighbourhood::AddColumns() {
  for (FreeOp& free : ops_) {
    for (size_t i = 0; i < free.before.size(); ++i) {
      free.column.push_back(program_.AddColumn(
          static_cast<double>(problem_.rules.rerun_ns[free.op]) * cost_scale_,
          0, 1, /*whole=*/false));
    }
  }
  for (Value& value : values_) {
    const OpId maker = problem_.versions.maker[value.id];
    for (size_t i = value.touches.size() - 1; i-- > 0;) {
      const Touch& next = value.touches[i + 1];
      const bool made = RerunColumn(maker, next.slot) >= 0;
      const bool read_again =
          std::any_of(value.readers.begin(), value.readers.end(),
                      [&](OpId o) { return RerunColumn(o, next.slot) >= 0; });
      int32_t& kept = value.touches[i].kept;
      if (value.touches[i].destroys) {
        kept = kZero;
      } else if (!made && (next.reads || (next.kept == kOne && !next.makes))) {
        kept = kOne;
      } else if (!next.reads && !read_again &&
                 (next.makes || next.destroys || next.kept == kZero)) {
        kept = kZero;
      } else {
        kept = program_.AddColumn(0, 0, 1, /*whole=*/true);
      }
    }
  }
}

void Neighbourhood::AddRow(std::initializer_list<int32_t> plus,
                           std::initializer_list<int32_t> minus, int at_least) {
  int least = 0;  // of the sum
  for (const int32_t column : plus) {
    if (column == kOne) --at_least;
  }
  for (const int32_t column : minus) {
    if (column == kOne) ++at_least;
    if (column >= 0) --least;
  }
  if (least >= at_least) return;
  for (const int32_t column : plus) {
    if (column >= 0) program_.AddEntry(column, 1);
  }
  for (const int32_t column : minus) {
    if (column >= 0) program_.AddEntry(column, -1);
  }
  program_.CloseRow(at_least, kMipInfinity);
}

void Neighbourhood::AddRows() {
  for (const Value& value : values_) {
    const OpId maker = problem_.versions.maker[value.id];
    for (size_t i = 1; i < value.touches.size(); ++i) {
      const Touch& touch = value.touches[i];
      const int32_t made = RerunColumn(maker, touch.slot);
      const int32_t kept = value.touches[i - 1].kept;
      const int32_t after = touch.reads   ? kOne
                            : touch.makes ? kZero
                                          : touch.kept;
      AddRow({kept, made}, {after}, 0);
      for (const OpId reader : value.readers) {
        AddRow({kept, made}, {RerunColumn(reader, touch.slot)}, 0);
      }
      for (const OpId other : value.others) {
        const int32_t gone = RerunColumn(other, touch.slot);
        if (gone == kZero) continue;
        // Older versions come before it in the burst, newer ones after it.
        const int32_t again = other < maker ? made : kZero;
        AddRow({again}, {after, gone}, -1);
        if (other > maker) continue;
        for (const OpId reader : value.readers) {
          AddRow({again}, {RerunColumn(reader, touch.slot), gone}, -1);
        }
      }
    }
  }
  const int most = problem_.capabilities.max_runs;
  if (most <= 0) return;
  for (const FreeOp& free : ops_) {
    if (free.column.empty()) continue;
    for (const int32_t column : free.column) program_.AddEntry(column, 1);
    program_.CloseRow(-kMipInfinity,
                      static_cast<double>(most - free.stays_count));
  }
}

// Between two slots that touch anything the same values are there: the one
// where most else is alive speaks for all.
void Neighbourhood::AddMemoryRows() {
  const int32_t count = static_cast<int32_t>(slots_.size());
  std::vector<uint8_t> touched(count + 1, 0);
  for (const Value& value : values_) {
    for (const Touch& touch : value.touches) {
      touched[touch.slot] = 1;
      touched[touch.slot + 1] = 1;
    }
  }
  struct Entry {
    int32_t column;
    int64_t bytes;
  };
  std::vector<size_t> next(values_.size(), 0);
  std::vector<Entry> entries;
  for (int32_t begin = 0; begin < count;) {
    int32_t end = begin + 1;
    int64_t other = other_at_[begin];
    while (end < count && touched[end] == 0) {
      other = std::max(other, other_at_[end++]);
    }
    int64_t surely = other, most = other;
    entries.clear();
    for (size_t j = 0; j < values_.size();) {
      // The versions of one storage, of which one at most is there.
      const StorageId s = problem_.versions.storage[values_[j].id];
      bool used = false, perhaps = false, kept = false;
      const size_t entry_count = entries.size();
      for (; j < values_.size(); ++j) {
        const Value& value = values_[j];
        if (problem_.versions.storage[value.id] != s) break;
        while (next[j] < value.touches.size() &&
               value.touches[next[j]].slot <= begin) {
          ++next[j];
        }
        if (next[j] == 0) continue;
        const Touch& touch = value.touches[next[j] - 1];
        used |= touch.slot == begin && (touch.reads || touch.makes);
        kept |= touch.kept == kOne;
        perhaps |= touch.kept != kZero;
        if (touch.kept >= 0) entries.push_back({touch.kept, value.bytes});
      }
      if (used || kept) {
        entries.resize(entry_count);
        surely += problem_.bytes[s];
      }
      if (used || perhaps) most += problem_.bytes[s];
    }
    begin = end;
    if (most <= budget_bytes_ || entries.empty()) continue;
    for (const Entry& entry : entries) {
      program_.AddEntry(entry.column,
                        static_cast<double>(entry.bytes) * byte_scale_);
    }
    program_.CloseRow(
        -kMipInfinity,
        static_cast<double>(budget_bytes_ - surely) * byte_scale_);
  }
}

// ---------------------------------------------------------------------------
// Rows (burst), where a solution exceeds the budget

int Neighbourhood::AddBurstRows(const std::vector<double>& solution) {
  const std::vector<OpId> execs = ExecsOf(solution);
  ExecList list(problem_);
  list.Assign(execs);
  int added = 0;
  int32_t slot = 0;
  for (Node node = 0; node != list.End(); node = list.Move(node, 1)) {
    const OpId o = list.OpOf(node);
    if (!list.IsRerun(node) || is_free_[o] == 0) {
      ++slot;
      continue;
    }
    if (list.BytesAt(node) <= budget_bytes_) continue;
    added += AddBurstRow(slot, o);
  }
  return added;
}

// P[v] of a row (burst): a column, or a constant.
int32_t Neighbourhood::WantedColumn(const Value& value, int32_t slot, OpId o) {
  const auto touch =
      std::find_if(value.touches.rbegin(), value.touches.rend(),
                   [&](const Touch& other) { return other.slot <= slot; });
  if (touch == value.touches.rend()) return kZero;
  if (touch->slot < slot) return touch->kept;
  if (touch + 1 == value.touches.rend()) return kZero;  // the slot's own
  std::vector<int32_t> wants;
  if (touch->reads) {
    wants.push_back(kOne);
  } else {
    if (!touch->makes && touch->kept != kZero) wants.push_back(touch->kept);
    for (const OpId reader : value.readers) {
      const int32_t again = RerunColumn(reader, slot);
      if (reader > o && again >= 0) wants.push_back(again);
    }
  }
  if (wants.empty()) return kZero;
  const OpId maker = problem_.versions.maker[value.id];
  const int32_t made = maker > o ? RerunColumn(maker, slot) : kZero;
  if (wants.size() == 1 && made == kZero) return wants.front();
  const int32_t column = program_.AddColumn(0, 0, 1, /*whole=*/false);
  for (const int32_t want : wants) AddRow({column, made}, {want}, 0);
  return column;
}

bool Neighbourhood::AddBurstRow(int32_t slot, OpId o) {
  if (std::find(burst_rows_.begin(), burst_rows_.end(), std::pair{slot, o}) !=
      burst_rows_.end()) {
    return false;
  }
  const int32_t again = RerunColumn(o, slot);
  if (again < 0) return false;
  burst_rows_.emplace_back(slot, o);
  std::vector<uint8_t> own(problem_.bytes.size(), 0);
  int64_t own_bytes = problem_.workspace[o];
  const auto take = [&](std::span<const ValueId> values) {
    for (const ValueId v : values) {
      const StorageId s = problem_.versions.storage[v];
      if (value_of_[v] < 0 || own[s] != 0) continue;
      own[s] = 1;
      own_bytes += problem_.bytes[s];
    }
  };
  take(problem_.versions.Need(o));
  take(problem_.versions.Make(o));
  int64_t room = budget_bytes_ - other_before_[slot];
  std::vector<std::pair<int32_t, double>> entries = {
      {again, static_cast<double>(own_bytes) * byte_scale_}};
  for (const Value& value : values_) {
    if (own[problem_.versions.storage[value.id]] != 0) continue;
    const int32_t column = WantedColumn(value, slot, o);
    if (column == kOne) room -= value.bytes;
    if (column >= 0) {
      entries.emplace_back(column,
                           static_cast<double>(value.bytes) * byte_scale_);
    }
  }
  for (const auto& [column, value] : entries) program_.AddEntry(column, value);
  program_.CloseRow(-kMipInfinity, static_cast<double>(room) * byte_scale_);
  return true;
}

}  // namespace reprise::planner
