// SPDX-License-Identifier: Apache-2.0
#include "planner/model/flags.h"

#include <algorithm>

namespace reprise::planner {

Flags BaseFlags(const Problem& problem) {
  Flags flags(problem.flag_count(), Retention::kSave);
  for (int32_t f = 0; f < problem.flag_count(); ++f) {
    if (problem.IsTail(f) && problem.flag_fixed[f] == 0) {
      flags[f] = Retention::kAgain;
    }
  }
  return flags;
}

Flags FlagsOfExecs(const Problem& problem, const std::vector<OpId>& execs) {
  const Versions& versions = problem.versions;
  Flags flags = BaseFlags(problem);
  // By value: the flag of its current gap, how often it was made since the gap
  // began, and how often re-runs needed it since then.
  std::vector<int32_t> gap(versions.value_count(), 0);
  std::vector<int32_t> made(versions.value_count(), 0);
  std::vector<int32_t> wanted_after(versions.value_count(), 0);
  std::vector<uint8_t> ran(problem.op_count, 0);
  const auto close = [&](ValueId v) {
    if (made[v] == 0 || problem.flag_fixed[gap[v]] != 0) return;
    const bool tail = problem.IsTail(gap[v]);
    if (made[v] == 1) {
      flags[gap[v]] = Retention::kShare;
    } else {
      flags[gap[v]] = wanted_after[v] >= made[v] && !tail ? Retention::kShare
                                                          : Retention::kAgain;
    }
  };
  const auto enter = [&](ValueId v, int32_t flag) {
    close(v);
    gap[v] = flag;
    made[v] = 0;
    wanted_after[v] = 0;
  };
  for (const OpId o : execs) {
    const bool again = ran[o] != 0;
    ran[o] = 1;
    if (again) {
      for (const ValueId v : versions.Need(o)) {
        ++wanted_after[v];
        // A re-run read it although it was not recomputed: it was kept.
        if (made[v] == 0 && problem.IsTail(gap[v])) {
          flags[gap[v]] = Retention::kSave;
        }
      }
      for (const ValueId v : versions.Make(o)) ++made[v];
      continue;
    }
    for (int32_t i = versions.need_begin[o]; i < versions.need_begin[o + 1];
         ++i) {
      enter(versions.need[i], problem.need_flag[i]);
    }
    for (const ValueId v : versions.Make(o)) enter(v, problem.flag_begin[v]);
  }
  for (ValueId v = 0; v < versions.value_count(); ++v) close(v);
  for (int32_t f = 0; f < problem.flag_count(); ++f) {
    if (problem.flag_fixed[f] != 0) flags[f] = Retention::kSave;
  }
  return flags;
}

Generator::Generator(const Problem& problem)
    : problem_(problem),
      present_(problem.bytes.size()),
      life_(problem.bytes.size()),
      gap_(problem.versions.value_count()),
      runs_(problem.op_count),
      first_exec_(problem.op_count + 1) {}

void Generator::Reset() {
  std::fill(present_.begin(), present_.end(), kNoValue);
  std::fill(life_.begin(), life_.end(), -1);
  std::fill(runs_.begin(), runs_.end(), 0);
  std::fill(first_exec_.begin(), first_exec_.end(), -1);
  lives_.clear();
  execs_.clear();
  duplicates_.clear();
  seeded_.clear();
  time_ns_ = 0;
}

std::span<const ValueId> Generator::NeedOf(OpId op) const {
  return op == problem_.op_count ? std::span<const ValueId>(problem_.end_need)
                                 : problem_.versions.Need(op);
}

// Returns whether the program still holds the first life, or the storage is
// pinned, so that it cannot be freed and recomputed.
bool Generator::IsHeld(StorageId s) const {
  if (life_[s] < 0 || !lives_[life_[s]].first) return false;
  if (problem_.graph->storages[s].pinned) return true;
  const OpId held = problem_.rules.held_until[s];
  return held != kNoOp && first_exec_[held] < 0;
}

Generated Generator::Generate(const Flags& flags, int64_t most_ns) {
  Reset();
  flags_ = &flags;
  most_ns_ = most_ns;
  Generated result;
  for (at_ = 0; at_ <= problem_.op_count; ++at_) {
    bool absent = false;
    for (const ValueId v : NeedOf(at_)) {
      absent = absent || present_[problem_.versions.storage[v]] != v;
    }
    if (absent && !Burst(at_)) {
      result.too_slow = time_ns_ > most_ns_;
      return result;
    }
    if (at_ == problem_.op_count) break;
    Run(at_, /*again=*/false);
    AfterFirstRun(at_);
    if (time_ns_ > most_ns_) {
      result.too_slow = true;
      return result;
    }
  }
  result.valid = true;
  result.time_ns = time_ns_;
  Account(result);
  return result;
}

// Recomputes what the op at the bottom needs. Returns false if that is
// impossible with these flags, or too slow.
bool Generator::Burst(OpId at) {
  if (problem_.rules.may_trigger[at] == 0) return false;
  const size_t most_execs = 20 * static_cast<size_t>(problem_.op_count) + 100;
  frames_.clear();
  transient_.clear();
  frames_.push_back({at, 0, 0, kNoValue, 0});
  while (true) {
    Frame& frame = frames_.back();
    const std::span<const ValueId> need = NeedOf(frame.op);
    ValueId absent = kNoValue;
    while (frame.next_need < static_cast<int32_t>(need.size())) {
      const ValueId v = need[frame.next_need];
      if (present_[problem_.versions.storage[v]] != v) {
        absent = v;
        break;
      }
      ++frame.next_need;
      ++ticks_;
    }
    if (absent == kNoValue) {
      // Values recomputed earlier may have been destroyed for later ones.
      for (const ValueId v : need) {
        if (present_[problem_.versions.storage[v]] != v) absent = v;
      }
      if (absent != kNoValue) {
        if (++frame.tries > 2) return false;
        frame.next_need = 0;
        continue;
      }
      if (frames_.size() == 1) return true;
      const Frame done = frame;
      if (!Run(done.op, /*again=*/true)) return false;
      AfterRerun(done.op, done.asked);
      for (size_t i = done.transient_begin; i < transient_.size(); ++i) {
        const ValueId v = transient_[i];
        ValueId& present = present_[problem_.versions.storage[v]];
        if (present == v) present = kNoValue;
      }
      transient_.resize(done.transient_begin);
      frames_.pop_back();
      if ((*flags_)[gap_[done.asked]] == Retention::kAgain) {
        transient_.push_back(done.asked);
      }
      if (time_ns_ > most_ns_ || execs_.size() > most_execs) return false;
      continue;
    }
    const OpId maker = problem_.versions.maker[absent];
    if (!MayRun(maker, absent)) return false;
    frames_.push_back(
        {maker, 0, 0, absent, static_cast<int32_t>(transient_.size())});
  }
}

bool Generator::MayRun(OpId op, ValueId asked) {
  if (problem_.rules.may_remake[asked] == 0 ||
      !problem_.rules.IsInWindow(op, at_)) {
    return false;
  }
  const int most = problem_.capabilities.max_runs;
  if (most > 0 && runs_[op] >= most) return false;
  // A burst deeper than the step is long: clashing versions cause a loop.
  return frames_.size() <= static_cast<size_t>(problem_.op_count);
}

// Runs an op whose inputs are present. Returns false if an output clashes with
// a present value that cannot be discarded.
bool Generator::Run(OpId op, bool again) {
  const Versions& versions = problem_.versions;
  const int32_t position = static_cast<int32_t>(execs_.size());
  const std::span<const ValueId> make = versions.Make(op);
  was_present_.clear();
  for (const ValueId v : make) {
    was_present_.push_back(present_[versions.storage[v]] == v);
  }
  int64_t duplicates = 0;
  for (const StorageId s : problem_.Writes(op)) {
    if (again && IsHeld(s)) {
      // It is present, whether the flags keep it or not.
      if (present_[s] != versions.first_value[s]) return false;
      duplicates += problem_.bytes[s];
      lives_[life_[s]].last = std::max(lives_[life_[s]].last, position);
      continue;
    }
    life_[s] = static_cast<int32_t>(lives_.size());
    lives_.push_back({s, position, position, !again});
  }
  for (const ValueId v : versions.Need(op)) {
    lives_[life_[versions.storage[v]]].last = position;
  }
  for (const ValueId v : make) present_[versions.storage[v]] = v;
  execs_.push_back(op);
  duplicates_.push_back(problem_.capabilities.duplicate_outputs ? duplicates
                                                                : 0);
  if (again) {
    if (problem_.graph->ops[op].state_bytes > 0 &&
        problem_.graph->ops[op].kind == OpKind::kSeeded) {
      seeded_.emplace_back(op, position);
    }
    time_ns_ += problem_.rules.rerun_ns[op];
  } else {
    first_exec_[op] = position;
    time_ns_ += problem_.time_ns[op];
  }
  ++runs_[op];
  ticks_ += 2 + static_cast<int64_t>(make.size() + versions.Need(op).size());
  return true;
}

// Outputs that were not requested stay if their gap is saved or shared.
void Generator::AfterRerun(OpId op, ValueId asked) {
  const std::span<const ValueId> make = problem_.versions.Make(op);
  for (size_t i = 0; i < make.size(); ++i) {
    const ValueId v = make[i];
    if (v == asked || was_present_[i] != 0) continue;
    if ((*flags_)[gap_[v]] != Retention::kAgain) continue;
    const StorageId s = problem_.versions.storage[v];
    if (!IsHeld(s)) present_[s] = kNoValue;
  }
}

void Generator::EnterGap(ValueId v, int32_t flag, OpId at) {
  gap_[v] = flag;
  const StorageId s = problem_.versions.storage[v];
  if ((*flags_)[flag] == Retention::kSave || present_[s] != v) return;
  // A held first life is discarded when it is released.
  const OpId held = problem_.rules.held_until[s];
  if (held >= at && lives_[life_[s]].first) return;
  present_[s] = kNoValue;
}

void Generator::AfterFirstRun(OpId op) {
  const Versions& versions = problem_.versions;
  for (int32_t i = versions.need_begin[op]; i < versions.need_begin[op + 1];
       ++i) {
    EnterGap(versions.need[i], problem_.need_flag[i], op);
  }
  for (const ValueId v : versions.Make(op)) {
    EnterGap(v, problem_.flag_begin[v], op);
  }
  for (int32_t i = problem_.released_begin[op];
       i < problem_.released_begin[op + 1]; ++i) {
    const StorageId s = problem_.released[i];
    const ValueId v = present_[s];
    if (v != kNoValue && (*flags_)[gap_[v]] != Retention::kSave) {
      present_[s] = kNoValue;
    }
  }
}

void Generator::Account(Generated& result) {
  const int32_t count = static_cast<int32_t>(execs_.size());
  bytes_at_.assign(count + 1, 0);
  for (Life& life : lives_) {
    if (life.first) {
      const OpId held = problem_.rules.held_until[life.storage];
      if (held != kNoOp) life.last = std::max(life.last, first_exec_[held]);
    }
    const bool last_life =
        &life == &lives_[life_[life.storage]];  // a required storage stays
    if (last_life && problem_.required[life.storage] != 0) {
      life.last = count - 1;
    }
    bytes_at_[life.born] += problem_.bytes[life.storage];
    bytes_at_[life.last + 1] -= problem_.bytes[life.storage];
  }
  // Generator state is stored from the first run to the last.
  for (size_t i = seeded_.size(); i-- > 0;) {
    const auto [op, position] = seeded_[i];
    if (runs_[op] == 0) continue;  // a later re-run was counted already
    runs_[op] = 0;
    bytes_at_[first_exec_[op]] += problem_.graph->ops[op].state_bytes;
    bytes_at_[position + 1] -= problem_.graph->ops[op].state_bytes;
  }
  int64_t live = problem_.static_bytes;
  result.peak_bytes = count == 0 ? live : 0;
  for (int32_t at = 0; at < count; ++at) {
    live += bytes_at_[at];
    bytes_at_[at] = live + problem_.workspace[execs_[at]] + duplicates_[at];
    if (bytes_at_[at] > result.peak_bytes || result.peak_exec < 0) {
      result.peak_bytes = bytes_at_[at];
      result.peak_exec = at;
    }
  }
  bytes_at_.resize(count);
  ticks_ += static_cast<int64_t>(lives_.size()) + count;
  // The burst of an exec leads to the next first run.
  for (int32_t at = result.peak_exec; at >= 0 && at < count; ++at) {
    if (first_exec_[execs_[at]] == at) {
      result.peak_at = execs_[at];
      break;
    }
  }
}

}  // namespace reprise::planner
