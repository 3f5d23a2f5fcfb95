// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/explain_proto.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/str_cat.h"

namespace reprise::formats {
namespace {

v1::StorageExplanation ToProto(const planner::StepGraph& graph,
                               const planner::StorageExplanation& from) {
  const planner::Storage& storage = graph.storages[from.storage];
  v1::StorageExplanation to;
  to.set_storage(static_cast<uint32_t>(from.storage));
  to.set_name(storage.name);
  if (from.made_by != planner::kNoOp) {
    to.set_made_by(static_cast<uint32_t>(from.made_by));
    to.set_module(graph.ops[from.made_by].module);
  }
  if (from.last_read_by != planner::kNoOp) {
    to.set_last_read_by(static_cast<uint32_t>(from.last_read_by));
  }
  to.set_bytes(storage.bytes);
  to.set_category(static_cast<v1::Category>(storage.category));
  to.set_decision(static_cast<v1::Decision>(from.decision));
  to.set_recompute_ns(from.recompute_ns);
  to.set_times_recomputed(static_cast<uint32_t>(from.times_recomputed));
  to.set_alive_at_peak(from.alive_at_peak);
  to.set_alive_at_base_peak(from.alive_at_base_peak);
  to.set_why(from.why);
  to.set_copy_slack_ns(from.copy_slack_ns);
  for (const planner::StorageLife& life : from.lives) {
    v1::StorageLife& added = *to.add_lives();
    added.set_born(static_cast<uint32_t>(life.born));
    added.set_last(static_cast<uint32_t>(life.last));
    added.set_born_ns(life.born_ns);
    added.set_last_ns(life.last_ns);
  }
  if (from.what_if) {
    v1::WhatIf& what_if = *to.mutable_what_if();
    what_if.set_decision(static_cast<v1::Decision>(from.what_if->decision));
    what_if.set_added_ns(from.what_if->added_ns);
    what_if.set_added_bytes(from.what_if->added_bytes);
  }
  return to;
}

v1::StorageGroup ToProto(const planner::StorageGroup& from) {
  v1::StorageGroup to;
  to.set_name(from.name);
  to.set_count(static_cast<uint32_t>(from.storages.size()));
  to.set_bytes(from.bytes);
  to.set_decision(static_cast<v1::Decision>(from.decision));
  to.set_why(from.why);
  to.set_recompute_ns(from.recompute_ns);
  to.set_copy_slack_ns(from.copy_slack_ns);
  to.mutable_storages()->Assign(from.storages.begin(), from.storages.end());
  return to;
}

v1::WorkingSet ToProto(const planner::StepGraph& graph,
                       const planner::WorkingSet& from, int64_t reserve_bytes) {
  v1::WorkingSet to;
  to.set_op(static_cast<uint32_t>(from.op));
  to.set_op_name(graph.ops[from.op].name);
  to.set_module(graph.ops[from.op].module);
  to.set_bytes(from.bytes + reserve_bytes);
  to.set_static_bytes(graph.static_bytes + reserve_bytes);
  to.set_workspace_bytes(from.workspace_bytes);
  to.set_advice(from.advice);
  to.set_by_window(from.by_window);
  for (const planner::StorageId s : from.storages) {
    v1::StorageExplanation& storage = *to.add_storages();
    storage.set_storage(static_cast<uint32_t>(s));
    storage.set_name(graph.storages[s].name);
    storage.set_bytes(graph.storages[s].bytes);
    storage.set_category(static_cast<v1::Category>(graph.storages[s].category));
  }
  return to;
}

}  // namespace

v1::Explanation ToProto(const planner::StepGraph& graph,
                        const planner::Explanation& from,
                        int64_t reserve_bytes) {
  v1::Explanation to;
  std::vector<const planner::StorageExplanation*> storages;
  for (const auto& storage : from.storages) storages.push_back(&storage);
  std::stable_sort(storages.begin(), storages.end(),
                   [&](const auto* a, const auto* b) {
                     return graph.storages[a->storage].bytes >
                            graph.storages[b->storage].bytes;
                   });
  for (const auto* storage : storages) {
    *to.add_storages() = ToProto(graph, *storage);
  }
  for (const planner::StorageGroup& group : from.groups) {
    *to.add_groups() = ToProto(group);
  }
  to.set_price_ns_per_byte(from.price_ns_per_byte);
  if (from.working_set.op != planner::kNoOp) {
    *to.mutable_working_set() = ToProto(graph, from.working_set, reserve_bytes);
  }
  return to;
}

planner::Plan ToPlanner(const v1::Plan& from, planner::Schedule schedule,
                        const planner::Evaluation& evaluation,
                        int64_t reserve_bytes) {
  planner::Plan plan;
  plan.feasible = from.feasible();
  plan.schedule = std::move(schedule);
  plan.evaluation = evaluation;
  if (!from.feasible()) {
    const v1::Infeasible& why = from.infeasible();
    plan.infeasible.smallest_budget_bytes =
        why.smallest_budget_bytes() - reserve_bytes;
    plan.infeasible.blocking_op = static_cast<int32_t>(why.blocking_op());
    plan.infeasible.storages.assign(why.storages().begin(),
                                    why.storages().end());
  }
  return plan;
}

std::string PriceText(const v1::Explanation& explanation) {
  const v1::Plan& plan = explanation.plan();
  struct Unit {
    const char* name;
    int64_t bytes;
  };
  constexpr Unit kUnits[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1024}};
  const int64_t dynamic_bytes =
      plan.peak_bytes() - explanation.working_set().static_bytes();
  Unit unit{"byte", 1};
  for (const Unit& candidate : kUnits) {
    if (candidate.bytes > dynamic_bytes / 10) continue;
    unit = candidate;
    break;
  }
  // The slope holds near this budget; no budget saves more than is recomputed.
  const auto most_ns =
      static_cast<double>(plan.time_ns() - plan.base_time_ns());
  const double saved_ns = std::min(
      explanation.price_ns_per_byte() * static_cast<double>(unit.bytes),
      most_ns);
  if (!(saved_ns >= 0.5)) return "";
  return StrCat("one more ", unit.name, " saves ",
                FormatDuration(static_cast<int64_t>(std::llround(saved_ns))));
}

}  // namespace reprise::formats
