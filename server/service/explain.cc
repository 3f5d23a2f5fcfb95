// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "server/convert/digest.h"
#include "server/service/handlers.h"
#include "server/service/stored_plan.h"

namespace reprise::server {

namespace {

planner::Plan PlannersView(const StoredPlan& stored) {
  const v1::Plan& proto = stored.proto;
  planner::Plan plan;
  plan.feasible = proto.feasible();
  plan.schedule = stored.schedule;
  plan.evaluation = stored.evaluation;
  plan.base_peak_bytes = proto.base_peak_bytes();
  plan.base_time_ns = proto.base_time_ns();
  plan.overhead = proto.overhead();
  plan.bound = proto.bound();
  plan.proven_optimal = proto.proven_optimal();
  for (const int decision : proto.decisions()) {
    plan.decisions.push_back(static_cast<planner::Decision>(decision));
  }
  plan.saved.assign(proto.saved().begin(), proto.saved().end());
  plan.recomputed_ops.assign(proto.recomputed_ops().begin(),
                             proto.recomputed_ops().end());
  return plan;
}

v1::StorageExplanation ToProto(const StoredPlan& stored,
                               const planner::StorageExplanation& from) {
  const auto id = static_cast<size_t>(from.storage);
  const planner::Storage& storage = stored.graph.storages[id];
  v1::StorageExplanation to;
  to.set_storage(static_cast<uint32_t>(from.storage));
  to.set_name(storage.name);
  if (from.made_by != planner::kNoOp) {
    to.set_made_by(static_cast<uint32_t>(from.made_by));
    to.set_module(stored.graph.ops[static_cast<size_t>(from.made_by)].module);
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
  return to;
}

}  // namespace

StatusOr<v1::Explanation> Explain(Services& services,
                                  const v1::ExplainRequest& request) {
  RETURN_IF_ERROR(ParseHexId(request.plan_id()).status());
  ASSIGN_OR_RETURN(const StoredPlan stored,
                   LoadStoredPlan(services.store, request.plan_id()));
  std::vector<planner::StorageExplanation> storages =
      planner::Explain(stored.graph, PlannersView(stored), stored.capabilities);
  std::stable_sort(storages.begin(), storages.end(),
                   [&](const auto& a, const auto& b) {
                     const auto& all = stored.graph.storages;
                     return all[static_cast<size_t>(a.storage)].bytes >
                            all[static_cast<size_t>(b.storage)].bytes;
                   });
  v1::Explanation explanation;
  *explanation.mutable_plan() = stored.proto;
  *explanation.mutable_capabilities() = stored.asked_capabilities;
  for (const planner::StorageExplanation& storage : storages) {
    *explanation.add_storages() = ToProto(stored, storage);
  }
  return explanation;
}

}  // namespace reprise::server
