// SPDX-License-Identifier: Apache-2.0
#include "planner/free_order.h"

#include <algorithm>
#include <bit>

namespace reprise::planner {
namespace {

// Loads stay below 2^30, so that sums of two of them fit in int32.
constexpr int kLoadBits = 30;
constexpr int kUnitBits = 14;  // the budget in units of Over()

}  // namespace

bool FreeOrder::Applies(const Problem& problem) {
  return !problem.capabilities.duplicate_outputs &&
         !problem.capabilities.recompute_in_backward_only && IsPlain(problem);
}

FreeOrder::FreeOrder(const Problem& problem, int64_t budget_bytes)
    : problem_(problem) {
  int64_t sum = problem.static_bytes;
  for (const int64_t bytes : problem.bytes) sum += bytes;
  int64_t most_workspace = 0;
  for (const int64_t bytes : problem.workspace) {
    most_workspace = std::max(most_workspace, bytes);
  }
  sum += most_workspace;
  const int bits = std::bit_width(static_cast<uint64_t>(sum));
  byte_shift_ = std::max(0, bits - kLoadBits);
  const auto up = [&](int64_t bytes) {
    return static_cast<int32_t>((bytes + (int64_t{1} << byte_shift_) - 1) >>
                                byte_shift_);
  };
  budget_ = static_cast<int32_t>(
      std::min<int64_t>(budget_bytes >> byte_shift_, int64_t{1} << kLoadBits));
  over_scale_ = std::max<int>(
      0, std::bit_width(static_cast<uint32_t>(budget_)) - kUnitBits);
  for (const int64_t bytes : problem.bytes) size_.push_back(up(bytes));
  for (const int64_t bytes : problem.workspace) workspace_.push_back(up(bytes));
  static_ = up(problem.static_bytes);

  const int storage_count = static_cast<int>(problem.bytes.size());
  maker_.assign(storage_count, kNoOp);
  reader_begin_.assign(storage_count + 1, 0);
  read_begin_.assign(1, 0);
  for (OpId o = 0; o < problem.op_count; ++o) {
    bool may = problem.rules.may_rerun[o] != 0;
    for (const StorageId s : problem.Writes(o)) {
      maker_[s] = o;
      if (problem.rules.may_remake[problem.versions.first_value[s]] == 0) {
        may = false;
      }
    }
    may_rerun_.push_back(may ? 1 : 0);
    for (const ValueId v : problem.versions.Need(o)) {
      const StorageId s = problem.versions.storage[v];
      reads_.push_back(s);
      ++reader_begin_[s + 1];
    }
    read_begin_.push_back(static_cast<int32_t>(reads_.size()));
  }
  for (int s = 0; s < storage_count; ++s) {
    reader_begin_[s + 1] += reader_begin_[s];
  }
  readers_.resize(reads_.size());
  std::vector<int32_t> next(reader_begin_.begin(), reader_begin_.end() - 1);
  for (OpId o = 0; o < problem.op_count; ++o) {
    for (int32_t i = read_begin_[o]; i < read_begin_[o + 1]; ++i) {
      readers_[next[reads_[i]]++] = o;
    }
  }
  mark_.assign(storage_count, 0);
  planned_.assign(problem.op_count, 0);
  touch_.assign(problem.op_count, 0);
  runs_of_.resize(problem.op_count);
}

bool FreeOrder::Assign(const std::vector<OpId>& execs) {
  const int32_t count = static_cast<int32_t>(execs.size());
  seq_.resize(count);
  pos_.resize(count);
  op_ = execs;
  unused_.clear();
  erased_.clear();
  for (auto& runs : runs_of_) runs.clear();
  int distinct = 0;
  for (int32_t at = 0; at < count; ++at) {
    const OpId o = execs[at];
    for (int32_t i = read_begin_[o]; i < read_begin_[o + 1]; ++i) {
      if (runs_of_[maker_[reads_[i]]].empty()) return false;
    }
    if (runs_of_[o].empty()) {
      ++distinct;
    } else if (may_rerun_[o] == 0) {
      return false;
    }
    seq_[at] = pos_[at] = at;
    runs_of_[o].push_back(at);
  }
  if (distinct != problem_.op_count) return false;
  load_.assign(count, 0);
  for (int32_t at = 0; at < count; ++at) {
    load_[at] = static_ + workspace_[OpAt(at)];
  }
  Begin();
  for (StorageId s = 0; s < static_cast<StorageId>(size_.size()); ++s) {
    Mark(s, 0, count);
  }
  ApplyMarked(1);
  Begin();
  return true;
}

std::vector<OpId> FreeOrder::Execs() const {
  std::vector<OpId> execs;
  execs.reserve(seq_.size());
  for (const int32_t instance : seq_) execs.push_back(op_[instance]);
  return execs;
}

int64_t FreeOrder::Over() const {
  int64_t sum = 0;
  for (const int32_t load : load_) {
    if (load <= budget_) continue;
    // Rounded up: a list with Over() == 0 fits.
    const int64_t units =
        (int64_t{load} - budget_ + (1 << over_scale_) - 1) >> over_scale_;
    sum += units * units;
  }
  ticks_ += size() / 8;
  return sum;
}

int32_t FreeOrder::OverfullPosition(Random& random) const {
  // From a random place on, so that all of them have a chance.
  const int32_t begin = random.Below(size());
  for (int32_t i = 0; i < size(); ++i) {
    int32_t at = begin + i;
    if (at >= size()) at -= size();
    if (load_[at] > budget_) {
      ticks_ += i / 8;
      return at;
    }
  }
  return -1;
}

FreeOrder::Life FreeOrder::LifeOf(StorageId s, int32_t number) const {
  const std::vector<int32_t>& runs = runs_of_[maker_[s]];
  const int32_t begin = pos_[runs[number]];
  const bool last = number + 1 == static_cast<int32_t>(runs.size());
  if (last && problem_.required[s] != 0) return {begin, size() - 1};
  const int32_t limit = last ? size() : pos_[runs[number + 1]];
  int32_t end = begin;
  for (int32_t i = reader_begin_[s]; i < reader_begin_[s + 1]; ++i) {
    const std::vector<int32_t>& reads = runs_of_[readers_[i]];
    for (size_t k = reads.size(); k-- > 0;) {
      const int32_t at = pos_[reads[k]];
      if (at <= end) break;
      if (at < limit) {
        end = at;
        break;
      }
    }
  }
  ticks_ += reader_begin_[s + 1] - reader_begin_[s];
  return {begin, end};
}

int32_t FreeOrder::SeenBy(OpId op, int32_t at) const {
  const std::vector<int32_t>& runs = runs_of_[op];
  for (size_t k = runs.size(); k-- > 0;) {
    if (pos_[runs[k]] < at) return static_cast<int32_t>(k);
  }
  return -1;
}

bool FreeOrder::IsUsedAt(StorageId s, int32_t at) const {
  const OpId o = OpAt(at);
  for (int32_t i = read_begin_[o]; i < read_begin_[o + 1]; ++i) {
    if (reads_[i] == s) return true;
  }
  return false;
}

int32_t FreeOrder::NextUse(StorageId s, int32_t after) const {
  int32_t next = size();
  for (int32_t i = reader_begin_[s]; i < reader_begin_[s + 1]; ++i) {
    for (const int32_t instance : runs_of_[readers_[i]]) {
      if (pos_[instance] > after) {
        next = std::min(next, pos_[instance]);
        break;
      }
    }
  }
  ticks_ += reader_begin_[s + 1] - reader_begin_[s];
  return next;
}

// A re-run whose outputs nobody reads.
bool FreeOrder::IsDead(int32_t instance) const {
  const OpId o = op_[instance];
  const std::vector<int32_t>& runs = runs_of_[o];
  if (runs.size() < 2) return false;
  const int32_t number = NumberOf(instance);
  for (const StorageId s : problem_.Writes(o)) {
    const Life life = LifeOf(s, number);
    if (life.end > life.begin) return false;
    if (problem_.required[s] != 0 &&
        number + 1 == static_cast<int32_t>(runs.size())) {
      return false;
    }
  }
  return true;
}

}  // namespace reprise::planner
