// SPDX-License-Identifier: Apache-2.0
#include "planner/verify/program.h"

#include <algorithm>
#include <functional>
#include <map>

namespace reprise::verify {
namespace {

constexpr size_t kMostUnits = 8;

}  // namespace

StatusOr<Program> Program::Build(const Facts& facts, int64_t budget_bytes,
                                 std::span<const OpId> at, bool inside,
                                 std::span<const InsideRow> inside_rows) {
  if (at.empty()) return InvalidArgument("no windows");
  Program program(facts, budget_bytes, inside);
  program.windows_.resize(at.size());
  for (size_t k = 0; k < at.size(); ++k) {
    if (at[k] < 0 || at[k] >= facts.op_count || (k > 0 && at[k] <= at[k - 1])) {
      return InvalidArgument("windows are not ascending ops");
    }
    Segment& segment = program.windows_[k];
    segment.at = at[k];
    segment.next = k + 1 < at.size() ? at[k + 1] : facts.op_count;
    // A re-run in the segment precedes a first run of (at, next], or the end.
    for (OpId o = segment.at + 1; o <= segment.next; ++o) {
      segment.may_rerun = segment.may_rerun || facts.may_trigger[o] != 0;
    }
    segment.sure.assign(facts.value_count, 0);
    segment.kept.assign(facts.value_count, kUnknown);
    segment.again.assign(facts.op_count, -1);
    segment.later.assign(facts.op_count, -1);
    segment.stays.assign(facts.value_count, -1);
    program.FindSure(segment);
    if (segment.room < 0) program.impossible_ = true;
  }
  // From the last, because each window needs columns for what the next carries.
  for (size_t k = at.size(); k-- > 0;) program.AddColumns(static_cast<int>(k));
  for (size_t k = 0; k < at.size(); ++k) program.AddRows(static_cast<int>(k));
  program.AddRunRows();
  for (const InsideRow& row : inside_rows) {
    if (!inside || row.segment < 0 ||
        row.segment + 1 >= static_cast<int32_t>(at.size()) || row.op < 0 ||
        row.op >= program.windows_[row.segment].next) {
      return InvalidArgument("a row inside a segment names no segment");
    }
    program.AddInsideRow(row.segment, row.op);
  }
  for (const Segment& segment : program.windows_) {
    program.AddRoundedRows(segment);
  }
  return program;
}

void Program::FindSure(Segment& segment) const {
  const Facts& facts = *facts_;
  const planner::Op& op = facts.graph->ops[segment.at];
  const OpId trigger = facts.TriggerFrom(segment.at);
  for (Value v = 0; v < facts.value_count; ++v) {
    if (facts.maker[v] >= segment.at) continue;
    for (const OpId use : facts.uses[v]) {
      if (use < segment.at) continue;
      if (use == segment.at || use < trigger || facts.may_remake[v] == 0) {
        segment.sure[v] = 1;
      }
      break;
    }
  }
  for (size_t s = 0; s < facts.graph->storages.size(); ++s) {
    const auto storage = static_cast<StorageId>(s);
    const OpId until = facts.HeldUntil(storage);
    if (until == planner::kNoOp || until < segment.at) continue;
    const Value there = facts.Before(storage, segment.at);
    if (there >= 0) segment.sure[there] = 1;
  }
  segment.room = budget_bytes_ - facts.graph->static_bytes - op.workspace_bytes;
  for (const StorageId s : op.writes) {
    segment.room -= facts.graph->storages[s].bytes;
  }
  for (Value v = 0; v < facts.value_count; ++v) {
    if (segment.sure[v] != 0) segment.room -= facts.BytesOf(v);
  }
}

int32_t Program::NewColumn(int64_t cost_ns, bool kept) {
  cost_ns_.push_back(cost_ns);
  is_kept_.push_back(kept);
  return column_count() - 1;
}

void Program::AddColumns(int k) {
  const Facts& facts = *facts_;
  Segment& segment = windows_[k];
  const Segment* next =
      k + 1 < static_cast<int>(windows_.size()) ? &windows_[k + 1] : nullptr;
  const auto add = [&](Value v) {
    if (facts.maker[v] >= segment.at || segment.sure[v] != 0 ||
        facts.BytesOf(v) == 0 || segment.kept[v] >= 0) {
      return;
    }
    segment.kept[v] = NewColumn(0, true);
    segment.values.push_back(v);
  };
  for (Value v = 0; v < facts.value_count; ++v) {
    const auto uses = facts.uses[v];
    if (!uses.empty() && uses.back() >= segment.at) add(v);
  }
  // Values whose makers may have to run again although they are present while
  // `at` runs: with memory inside segments, they may be discarded and
  // recomputed.
  std::vector<Value> also;
  if (next != nullptr) {
    for (const Value v : next->values) add(v);
    for (Value v = 0; v < facts.value_count; ++v) {
      if (next->sure[v] != 0) add(v);
    }
    for (Value v = 0; inside_ && segment.may_rerun && v < facts.value_count;
         ++v) {
      if (facts.may_remake[v] == 0 || facts.BytesOf(v) == 0 ||
          (next->kept[v] < 0 && next->sure[v] == 0)) {
        continue;
      }
      const OpId maker = facts.maker[v];
      if (maker == segment.at && segment.again[maker] < 0) {
        segment.again[maker] = NewColumn(facts.rerun_ns[maker], false);
      }
      if (maker < segment.at && segment.sure[v] != 0) also.push_back(v);
    }
  }
  // `values` grows during this loop: what a maker reads may have to be made
  // too.
  const auto add_maker = [&](Value v) {
    const OpId maker = facts.maker[v];
    if (facts.may_remake[v] == 0 || segment.later[maker] >= 0) return;
    if (segment.may_rerun) {
      segment.again[maker] = NewColumn(facts.rerun_ns[maker], false);
    }
    segment.later[maker] =
        next == nullptr ? segment.again[maker] : NewColumn(0, false);
    for (const Value u : facts.needs[maker]) add(u);
  };
  for (const Value v : also) add_maker(v);
  for (size_t i = 0; i < segment.values.size(); ++i) {
    add_maker(segment.values[i]);
  }
}

int32_t Program::Kept(const Segment& segment, Value v) const {
  if (segment.sure[v] != 0 || facts_->BytesOf(v) == 0) return kOne;
  return segment.kept[v];
}

int32_t Program::Remade(const Segment& segment, bool later, Value v) const {
  if (facts_->may_remake[v] == 0) return kZero;
  const OpId maker = facts_->maker[v];
  // Later segments may allow re-runs even if this one does not.
  const bool last = segment.next == facts_->op_count;
  if (!segment.may_rerun && (!later || last)) return kZero;
  const int32_t column = later ? segment.later[maker] : segment.again[maker];
  return column >= 0 ? column : kUnknown;
}

void Program::AddPresence(const Segment& segment, bool later, Value v,
                          int32_t minus, int64_t least) {
  const int32_t kept = Kept(segment, v);
  const int32_t remade = Remade(segment, later, v);
  if (kept < 0 || remade == kUnknown) return;
  Add(kept, 1);
  if (remade >= 0) Add(remade, 1);
  if (minus >= 0) Add(minus, -1);
  Close(least, false);
}

void Program::Close(int64_t least, bool in_bytes) {
  begin_.push_back(static_cast<int64_t>(entries_.size()));
  least_.push_back(least);
  in_bytes_.push_back(in_bytes);
}

void Program::AddRows(int k) {
  const Facts& facts = *facts_;
  const Segment& segment = windows_[k];
  const Segment* next =
      k + 1 < static_cast<int>(windows_.size()) ? &windows_[k + 1] : nullptr;

  // (memory)
  for (const Value v : segment.values) {
    Add(segment.kept[v], -facts.BytesOf(v));
  }
  for (OpId o = 0; o < segment.at; ++o) {
    const planner::Op& op = facts.graph->ops[o];
    if (op.kind == planner::OpKind::kSeeded && op.state_bytes > 0 &&
        segment.later[o] >= 0) {
      Add(segment.later[o], -op.state_bytes);
    }
  }
  Close(-segment.room, true);

  for (const Value v : segment.values) {
    bool first = false, future = false;
    for (const OpId use : facts.uses[v]) {
      first = first || (use >= segment.at && use < segment.next) ||
              (use == facts.op_count && next == nullptr);
      future = future || use >= segment.at;
    }
    if (first) AddPresence(segment, false, v, -1, 1);
    if (future && !(first && next == nullptr)) {
      AddPresence(segment, true, v, -1, 1);
    }
    if (next == nullptr) continue;
    if (next->kept[v] >= 0) {
      AddPresence(segment, false, v, next->kept[v], 0);
    } else if (next->sure[v] != 0 && !first) {
      AddPresence(segment, false, v, -1, 1);
    }
  }
  for (OpId o = 0; o <= segment.at; ++o) {
    for (const Value u : facts.needs[o]) {
      if (segment.again[o] >= 0) {
        AddPresence(segment, false, u, segment.again[o], 0);
      }
      if (next != nullptr && segment.later[o] >= 0) {
        AddPresence(segment, true, u, segment.later[o], 0);
      }
    }
    if (next == nullptr || segment.later[o] < 0) continue;
    if (segment.again[o] >= 0) Add(segment.again[o], 1);
    if (next->later[o] >= 0) Add(next->later[o], 1);
    Add(segment.later[o], -1);
    Close(0, false);
  }
  // (version)
  for (size_t s = 0; s < facts.graph->storages.size(); ++s) {
    int columns = 0;
    bool sure = false;
    for (Value v = facts.first_value[s]; v < facts.first_value[s + 1]; ++v) {
      columns += segment.kept[v] >= 0;
      sure = sure || segment.sure[v] != 0;
    }
    if (columns == 0 || (columns == 1 && !sure)) continue;
    for (Value v = facts.first_value[s]; v < facts.first_value[s + 1]; ++v) {
      if (segment.kept[v] >= 0) Add(segment.kept[v], -1);
    }
    Close(sure ? 0 : -1, false);
  }
}

void Program::AddRoundedRows(const Segment& segment) {
  if (segment.room < 0) return;
  std::map<int64_t, int64_t> bytes_of;  // by size, of all values of that size
  for (const Value v : segment.values) {
    bytes_of[facts_->BytesOf(v)] += facts_->BytesOf(v);
  }
  std::vector<std::pair<int64_t, int64_t>> units;
  for (const auto& [size, bytes] : bytes_of) units.emplace_back(bytes, size);
  std::sort(units.begin(), units.end(), std::greater<>());
  if (units.size() > kMostUnits) units.resize(kMostUnits);
  for (const auto& [bytes, unit] : units) {
    for (const Value v : segment.values) {
      const int64_t rounded = facts_->BytesOf(v) / unit;
      if (rounded > 0) Add(segment.kept[v], -rounded);
    }
    Close(-(segment.room / unit), false);
  }
}

void Program::AddRunRows() {
  const int most = facts_->executor.max_runs;
  if (most <= 0) return;
  for (OpId o = 0; o < facts_->op_count; ++o) {
    int columns = 0;
    for (const Segment& segment : windows_) columns += segment.again[o] >= 0;
    if (columns < most) continue;
    for (const Segment& segment : windows_) {
      if (segment.again[o] >= 0) Add(segment.again[o], -1);
    }
    Close(1 - int64_t{most}, false);
  }
}

}  // namespace reprise::verify
