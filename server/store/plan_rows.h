// SPDX-License-Identifier: Apache-2.0
//
// Rows of `graphs` and `plans`. The ids of both are derived from the content,
// so saving one twice is the same as saving it once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "reprise/v1/graph.pb.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/planner.pb.h"
#include "server/store/database.h"

namespace reprise::server {

// Returns whether the graph was not stored before. ALREADY_EXISTS: another
// graph has this id.
StatusOr<bool> SaveGraph(Database& db, std::string_view graph_id,
                         const v1::StepGraph& graph, int64_t now_ns);

// NOT_FOUND: no graph with this id is stored. Reads no more than its id.
Status FindGraph(Database& db, std::string_view graph_id);

// Notes that a user has sent this graph.
Status AddGraphOwner(Database& db, std::string_view graph_id,
                     std::string_view owner);
// The same as FindGraph and LoadPlan answer where it is not the user's: of
// graphs, the user sent none of this id and has no run with it; of plans, the
// graph is not the user's.
Status FindGraphOf(Database& db, std::string_view graph_id,
                   std::string_view owner);
Status FindPlanOf(Database& db, std::string_view plan_id,
                  std::string_view owner);

// NOT_FOUND.
StatusOr<v1::StepGraph> LoadGraph(Database& db, std::string_view graph_id);

// A plan and the request it answers. request.reserve_bytes is what was finally
// reserved.
struct PlanRow {
  v1::Plan plan;
  v1::PlanRequest request;
};
Status SavePlan(Database& db, const PlanRow& row, int64_t now_ns);

// Returns by how many bytes SavePlan would let the store grow: less than 0 if
// the plan is stored already and was larger.
StatusOr<int64_t> BytesToSave(Database& db, const PlanRow& row);

// In shared stores: which plan answers a request, by the request's name;
// "" for none.
StatusOr<std::string> FindAnswer(Database& db, std::string_view request);
Status SaveAnswer(Database& db, std::string_view request,
                  std::string_view plan_id);

// NOT_FOUND.
StatusOr<PlanRow> LoadPlan(Database& db, std::string_view plan_id);

}  // namespace reprise::server
