// SPDX-License-Identifier: Apache-2.0
#include "planner/explain/what_if.h"

#include <algorithm>
#include <limits>

#include "planner/model/list_moves.h"

namespace reprise::planner {
namespace {

// Ops that a counterfactual may add: longer ones are not worth showing.
constexpr size_t kMostRemade = 200;

}  // namespace

Counterfactual::Counterfactual(const Problem& problem,
                               std::span<const Entry> schedule,
                               const Evaluation& evaluation)
    : problem_(problem), evaluation_(evaluation) {
  std::vector<int32_t> exec_of(schedule.size() + 1, 0);
  for (size_t i = 0; i < schedule.size(); ++i) {
    exec_of[i] = static_cast<int32_t>(execs_.size());
    if (schedule[i].kind == Entry::Kind::kExec) {
      execs_.push_back(schedule[i].id);
    }
  }
  exec_of[schedule.size()] = static_cast<int32_t>(execs_.size());
  peak_exec_ = exec_of[std::max(0, evaluation.peak_entry)];
  std::vector<Lifetime> lives = Lifetimes(*problem.graph, schedule);
  std::stable_sort(lives.begin(), lives.end(),
                   [](const Lifetime& a, const Lifetime& b) {
                     return a.storage < b.storage;
                   });
  life_begin_.assign(problem.bytes.size() + 1, 0);
  for (const Lifetime& life : lives) {
    ++life_begin_[life.storage + 1];
    lives_.push_back({exec_of[life.born], exec_of[life.dead] - 1});
  }
  for (size_t s = 0; s < problem.bytes.size(); ++s) {
    life_begin_[s + 1] += life_begin_[s];
  }
}

bool Counterfactual::IsPresent(StorageId storage, int32_t exec) const {
  for (int32_t i = life_begin_[storage]; i < life_begin_[storage + 1]; ++i) {
    if (lives_[i].first < exec && exec <= lives_[i].second) return true;
  }
  return false;
}

std::optional<WhatIf> Counterfactual::Judge(const std::vector<OpId>& execs,
                                            Decision decision) const {
  const StatusOr<Evaluation> evaluation = EvaluateExecs(problem_, execs);
  if (!evaluation.ok()) return std::nullopt;
  return WhatIf{.decision = decision,
                .added_ns = evaluation->time_ns - evaluation_.time_ns,
                .added_bytes = evaluation->peak_bytes - evaluation_.peak_bytes};
}

std::optional<WhatIf> Counterfactual::IfKept(StorageId storage) const {
  const Versions& versions = problem_.versions;
  std::vector<uint8_t> makes(problem_.op_count, 0);
  for (ValueId v = versions.first_value[storage]; v <= versions.Last(storage);
       ++v) {
    makes[versions.maker[v]] = 1;
  }
  std::vector<uint8_t> ran(problem_.op_count, 0);
  std::vector<OpId> execs;
  for (const OpId o : execs_) {
    if (ran[o] == 0 || makes[o] == 0) execs.push_back(o);
    ran[o] = 1;
  }
  if (execs.size() == execs_.size()) return std::nullopt;
  return Judge(WithoutUnread(problem_, execs), Decision::kSave);
}

bool Counterfactual::Make(ValueId value, int32_t exec,
                          std::vector<uint8_t>& made,
                          std::vector<OpId>& ops) const {
  // Depth first with an explicit stack, because chains may be long.
  struct Frame {
    OpId op;
    bool inputs_done;
  };
  const Versions& versions = problem_.versions;
  const auto push_value = [&](ValueId v, std::vector<Frame>& stack) {
    // Earlier versions on top, because they are made first.
    const ValueId first = versions.first_value[versions.storage[v]];
    for (ValueId u = v; u >= first; --u) {
      stack.push_back({versions.maker[u], false});
    }
  };
  std::vector<Frame> stack;
  push_value(value, stack);
  while (!stack.empty()) {
    const Frame frame = stack.back();
    stack.pop_back();
    if (made[frame.op] != 0) continue;
    if (problem_.rules.may_rerun[frame.op] == 0) return false;
    if (frame.inputs_done) {
      made[frame.op] = 1;
      ops.push_back(frame.op);
      if (ops.size() > kMostRemade) return false;
      continue;
    }
    if (stack.size() > 4 * kMostRemade) return false;
    stack.push_back({frame.op, true});
    for (const ValueId u : versions.Need(frame.op)) {
      const OpId maker = versions.maker[u];
      const bool coming = made[maker] != 0;
      if (!coming && !IsPresent(versions.storage[u], exec)) {
        push_value(u, stack);
      }
    }
  }
  return true;
}

std::optional<WhatIf> Counterfactual::IfRecomputed(StorageId storage) const {
  const Versions& versions = problem_.versions;
  const ValueId value = versions.Last(storage);
  if (problem_.rules.may_remake[value] == 0) return std::nullopt;
  // The first use after the peak, in the life that spans the peak.
  int32_t reader = -1;
  int32_t end = std::numeric_limits<int32_t>::max();
  for (int32_t i = life_begin_[storage]; i < life_begin_[storage + 1]; ++i) {
    if (lives_[i].first < peak_exec_ && peak_exec_ < lives_[i].second) {
      end = lives_[i].second;
    }
  }
  const auto reads = [&](OpId o) {
    const std::vector<StorageId>& ids = problem_.graph->ops[o].reads;
    return std::find(ids.begin(), ids.end(), storage) != ids.end();
  };
  if (end == std::numeric_limits<int32_t>::max()) return std::nullopt;
  if (reads(execs_[peak_exec_])) return std::nullopt;
  for (int32_t i = peak_exec_ + 1; i <= end && reader < 0; ++i) {
    if (reads(execs_[i])) reader = i;
  }
  if (reader < 0) return std::nullopt;
  std::vector<uint8_t> made(problem_.op_count, 0);
  std::vector<OpId> remade;
  if (!Make(value, reader, made, remade)) return std::nullopt;
  std::vector<OpId> execs(execs_.begin(), execs_.begin() + reader);
  execs.insert(execs.end(), remade.begin(), remade.end());
  execs.insert(execs.end(), execs_.begin() + reader, execs_.end());
  return Judge(execs, Decision::kRecompute);
}

}  // namespace reprise::planner
