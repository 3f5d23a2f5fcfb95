// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "formats/convert/graph_names.h"
#include "server/service/memory/moment_view.h"

namespace reprise::server {

namespace {

using planner::Entry;
using planner::Lifetime;
using planner::OpId;
using planner::Phase;
using planner::StepGraph;
using planner::StorageId;

constexpr char kStepBegin[] = "reprise.step_begin";

v1::Phase ToProto(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return v1::PHASE_FORWARD;
    case Phase::kBackward:
      return v1::PHASE_BACKWARD;
    case Phase::kOptimizer:
      return v1::PHASE_OPTIMIZER;
  }
  return v1::PHASE_UNSPECIFIED;
}

class GraphMoment {
 public:
  GraphMoment(const StepGraph& graph, std::span<const Entry> schedule,
              const v1::Moment& moment, bool finished)
      : graph_(graph),
        schedule_(schedule),
        moment_(moment),
        finished_(finished),
        lives_(planner::Lifetimes(graph, schedule)) {}

  MomentView View(size_t most_ops) {
    MomentView view;
    view.finished = finished_;
    const int32_t at = Find(view.guessed);
    if (at < 0) return view;
    Hold(at, view);
    LastOps(at, most_ops, view);
    return view;
  }

 private:
  // Returns the schedule entry that was running; -1: none.
  int32_t Find(bool& guessed) const {
    if (finished_) return static_cast<int32_t>(schedule_.size()) - 1;
    if (moment_.has_op() && moment_.op() < graph_.ops.size()) {
      OpId op = static_cast<OpId>(moment_.op());
      // In the optimizer the executor reports only the phase, not the op.
      while (moment_.phase() == v1::PHASE_OPTIMIZER &&
             graph_.ops[op].phase != Phase::kOptimizer &&
             op + 1 < graph_.op_count()) {
        ++op;
      }
      return FirstRun(op);
    }
    guessed = true;
    return Fullest();
  }

  int32_t FirstRun(OpId op) const {
    for (size_t i = 0; i < schedule_.size(); ++i) {
      const Entry& entry = schedule_[i];
      if (entry.kind == Entry::Kind::kExec && entry.id == op) {
        return static_cast<int32_t>(i);
      }
    }
    return -1;
  }

  // Returns the entry with the most memory in the phase, or in the whole step
  // if the phase is unknown.
  int32_t Fullest() const {
    std::vector<int64_t> change(schedule_.size() + 1, 0);
    for (const Lifetime& life : lives_) {
      change[life.born] += graph_.storages[life.storage].bytes;
      change[life.dead] -= graph_.storages[life.storage].bytes;
    }
    int64_t live = 0;
    int64_t most = -1;
    int32_t found = -1;
    for (size_t i = 0; i < schedule_.size(); ++i) {
      live += change[i];
      if (schedule_[i].kind != Entry::Kind::kExec) continue;
      const planner::Op& op = graph_.ops[schedule_[i].id];
      const bool fits = moment_.phase() == v1::PHASE_UNSPECIFIED ||
                        ToProto(op.phase) == moment_.phase();
      if (fits && live + op.workspace_bytes > most) {
        most = live + op.workspace_bytes;
        found = static_cast<int32_t>(i);
      }
    }
    return found;
  }

  void Hold(int32_t at, MomentView& view) const {
    view.has_memory = true;
    std::vector<OpId> writer(graph_.storages.size(), planner::kNoOp);
    for (OpId op = 0; op < graph_.op_count(); ++op) {
      for (const StorageId s : graph_.ops[op].writes) writer[s] = op;
    }
    const auto add = [&](v1::HeldStorage held) {
      view.live_bytes += held.bytes();
      if (held.bytes() > 0) view.storages.push_back(std::move(held));
    };
    for (const planner::StaticPart& part : planner::StaticMemory(graph_)) {
      const auto category = static_cast<v1::Category>(part.category);
      v1::HeldStorage resident;
      resident.set_bytes(part.bytes);
      resident.set_name(std::string(formats::kCategoryTexts[category]));
      resident.set_category(category);
      add(std::move(resident));
    }
    // After a finished step, only what outlives it is alive.
    const auto there = static_cast<int32_t>(schedule_.size());
    for (const Lifetime& life : lives_) {
      if (finished_ ? life.dead < there : life.born > at || life.dead <= at) {
        continue;
      }
      const planner::Storage& storage = graph_.storages[life.storage];
      v1::HeldStorage held;
      held.set_bytes(storage.bytes);
      held.set_name(storage.name);
      held.set_category(static_cast<v1::Category>(storage.category));
      if (const OpId op = writer[life.storage]; op != planner::kNoOp) {
        if (graph_.ops[op].name != kStepBegin) {
          held.set_made_by(graph_.ops[op].name);
        }
        held.set_module(graph_.ops[op].module);
      }
      add(std::move(held));
    }
    if (finished_ || schedule_[at].kind != Entry::Kind::kExec) return;
    const planner::Op& op = graph_.ops[schedule_[at].id];
    v1::HeldStorage inside;
    inside.set_bytes(op.workspace_bytes);
    inside.set_made_by(op.name);
    inside.set_module(op.module);
    inside.set_name("inside the op");
    inside.set_category(v1::CATEGORY_TEMPORARY);
    add(std::move(inside));
  }

  void LastOps(int32_t at, size_t most_ops, MomentView& view) const {
    std::vector<bool> first(at + 1, false);
    std::vector<bool> ran(graph_.ops.size(), false);
    for (int32_t i = 0; i <= at; ++i) {
      if (schedule_[i].kind != Entry::Kind::kExec) continue;
      first[i] = !ran[schedule_[i].id];
      ran[schedule_[i].id] = true;
    }
    for (int32_t i = at; i >= 0 && view.ops.size() < most_ops; --i) {
      if (schedule_[i].kind != Entry::Kind::kExec) continue;
      const planner::Op& op = graph_.ops[schedule_[i].id];
      if (op.name == kStepBegin) continue;
      v1::LastOp& last = view.ops.emplace_back();
      last.set_op(static_cast<uint32_t>(schedule_[i].id));
      last.set_name(op.name);
      last.set_module(op.module);
      last.set_phase(ToProto(op.phase));
      last.set_again(!first[i]);
      last.set_under_way(i == at && !finished_ && !view.guessed);
    }
    std::reverse(view.ops.begin(), view.ops.end());
  }

  const StepGraph& graph_;
  const std::span<const Entry> schedule_;
  const v1::Moment& moment_;
  const bool finished_;
  const std::vector<Lifetime> lives_;
};

}  // namespace

MomentView ViewFromGraph(const StepGraph& graph,
                         std::span<const Entry> schedule,
                         const v1::Moment& moment, bool finished,
                         size_t most_ops) {
  return GraphMoment(graph, schedule, moment, finished).View(most_ops);
}

}  // namespace reprise::server
