// SPDX-License-Identifier: Apache-2.0
//
// The (inside) rows: memory between two windows.
#include "planner/verify/program.h"

namespace reprise::verify {

int64_t Program::Touched(OpId o, std::vector<uint8_t>& marks) const {
  marks.assign(facts_->graph->storages.size(), 0);
  int64_t bytes = facts_->graph->ops[o].workspace_bytes;
  const auto touch = [&](std::span<const Value> values) {
    for (const Value v : values) {
      const StorageId s = facts_->storage[v];
      if (marks[s] == 0) bytes += facts_->graph->storages[s].bytes;
      marks[s] = 1;
    }
  };
  touch(facts_->needs[o]);
  touch(facts_->makes[o]);
  return bytes;
}

bool Program::MayStay(int k, Value v) const {
  const Segment& next = windows_[k + 1];
  return facts_->maker[v] <= windows_[k].at && facts_->BytesOf(v) > 0 &&
         (next.kept[v] >= 0 || next.sure[v] != 0) &&
         Remade(windows_[k], false, v) != kUnknown;
}

void Program::AddInsideRow(int k, OpId o) {
  Segment& segment = windows_[k];
  const Segment& next = windows_[k + 1];
  const bool first = o > segment.at;
  if (!first && segment.again[o] < 0) return;
  std::vector<uint8_t> marks;
  const int64_t touched = Touched(o, marks);
  int64_t room = budget_bytes_ - facts_->graph->static_bytes;
  std::vector<Entry> sum;
  for (Value v = 0; v < facts_->value_count; ++v) {
    if (marks[facts_->storage[v]] != 0 || !MayStay(k, v)) continue;
    const int32_t there = Kept(next, v);
    const int32_t remade = Remade(segment, false, v);
    if (remade < 0 && there == kOne) {
      room -= facts_->BytesOf(v);
      continue;
    }
    if (remade < 0) {
      sum.push_back({there, -facts_->BytesOf(v)});
      continue;
    }
    if (segment.stays[v] < 0) {
      // (stays)
      segment.stays[v] = NewColumn(0, false);
      Add(segment.stays[v], 1);
      Add(remade, 1);
      if (there >= 0) Add(there, -1);
      Close(there >= 0 ? 0 : 1, false);
    }
    sum.push_back({segment.stays[v], -facts_->BytesOf(v)});
  }
  for (const Entry& entry : sum) entries_.push_back(entry);
  if (first) {
    room -= touched;
  } else {
    Add(segment.again[o], -touched);
  }
  Close(-room, true);
}

bool Program::ViolatesInside(int k, OpId o,
                             const std::vector<double>& solution) const {
  const Segment& segment = windows_[k];
  const Segment& next = windows_[k + 1];
  const bool first = o > segment.at;
  if (!first && segment.again[o] < 0) return false;
  std::vector<uint8_t> marks;
  const auto touched = static_cast<double>(Touched(o, marks));
  double bytes = first ? touched : touched * solution[segment.again[o]];
  for (Value v = 0; v < facts_->value_count; ++v) {
    if (marks[facts_->storage[v]] != 0 || !MayStay(k, v)) continue;
    const int32_t there = Kept(next, v);
    const int32_t remade = Remade(segment, false, v);
    const double stays = (there >= 0 ? solution[there] : 1) -
                         (remade >= 0 ? solution[remade] : 0);
    if (stays > 0) bytes += stays * static_cast<double>(facts_->BytesOf(v));
  }
  const auto room =
      static_cast<double>(budget_bytes_ - facts_->graph->static_bytes);
  return bytes > room * (1 + 1e-7) + 0.5;
}

}  // namespace reprise::verify
