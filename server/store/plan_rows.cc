// SPDX-License-Identifier: Apache-2.0
#include "server/store/plan_rows.h"

#include "base/str_cat.h"

namespace reprise::server {

namespace {

// Our own rows fail to parse only if the file is damaged.
Status Damaged(std::string_view what, std::string_view id) {
  return {Code::kDataLoss,
          StrCat(what, " ", id, ": the stored row is damaged")};
}

Status NoGraph(std::string_view graph_id) {
  return NotFound(StrCat("graph_id: there is no step graph \"", graph_id,
                         "\"; submit it with PutGraph first"));
}

Status NoPlan(std::string_view plan_id) {
  return NotFound(StrCat("plan_id: there is no plan \"", plan_id, "\""));
}

}  // namespace

StatusOr<bool> SaveGraph(Database& db, std::string_view graph_id,
                         const v1::StepGraph& graph, int64_t now_ns) {
  const std::string body = graph.SerializeAsString();
  RETURN_IF_ERROR(
      db.Run("INSERT INTO graphs VALUES (?, ?, ?, ?, ?, ?)"
             " ON CONFLICT DO NOTHING",
             graph_id, now_ns, graph.name(), graph.ops_size(),
             graph.storages_size(), Blob{body}));
  if (db.changes() > 0) return true;
  ASSIGN_OR_RETURN(const auto row, db.First("SELECT body = ?2 FROM graphs"
                                            " WHERE graph_id = ?1",
                                            graph_id, Blob{body}));
  if (row && row->Int(0) != 0) return false;
  return AlreadyExists(StrCat("graph_id: another step graph is stored as ",
                              graph_id, "; leave the id empty"));
}

Status FindGraph(Database& db, std::string_view graph_id) {
  ASSIGN_OR_RETURN(
      const auto row,
      db.First("SELECT 1 FROM graphs WHERE graph_id = ?", graph_id));
  return row ? OkStatus() : NoGraph(graph_id);
}

Status AddGraphOwner(Database& db, std::string_view graph_id,
                     std::string_view owner) {
  return db.Run("INSERT INTO graph_owners VALUES (?, ?) ON CONFLICT DO NOTHING",
                graph_id, owner);
}

Status FindGraphOf(Database& db, std::string_view graph_id,
                   std::string_view owner) {
  ASSIGN_OR_RETURN(const auto row,
                   db.First("SELECT 1 FROM graphs WHERE graph_id = ?1"
                            " AND (EXISTS (SELECT 1 FROM graph_owners"
                            "   WHERE graph_id = ?1 AND owner = ?2)"
                            "  OR EXISTS (SELECT 1 FROM runs"
                            "   WHERE graph_id = ?1 AND owner = ?2))",
                            graph_id, owner));
  return row ? OkStatus() : NoGraph(graph_id);
}

Status FindPlanOf(Database& db, std::string_view plan_id,
                  std::string_view owner) {
  ASSIGN_OR_RETURN(
      const auto row,
      db.First("SELECT graph_id FROM plans WHERE plan_id = ?", plan_id));
  if (row && FindGraphOf(db, row->Text(0), owner).ok()) return OkStatus();
  return NoPlan(plan_id);
}

StatusOr<v1::StepGraph> LoadGraph(Database& db, std::string_view graph_id) {
  ASSIGN_OR_RETURN(
      const auto row,
      db.First("SELECT body FROM graphs WHERE graph_id = ?", graph_id));
  if (!row) return NoGraph(graph_id);
  const std::string_view body = row->Bytes(0);
  v1::StepGraph graph;
  if (!graph.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return Damaged("graph", graph_id);
  }
  return graph;
}

Status SavePlan(Database& db, const PlanRow& row, int64_t now_ns) {
  const std::string request = row.request.SerializeAsString();
  const std::string body = row.plan.SerializeAsString();
  return db.Run(
      "INSERT INTO plans VALUES (?, ?, ?, ?, ?, ?, ?)"
      " ON CONFLICT (plan_id) DO UPDATE SET graph_id = excluded.graph_id,"
      " created_ns = excluded.created_ns, feasible = excluded.feasible,"
      " budget_bytes = excluded.budget_bytes, request = excluded.request,"
      " body = excluded.body",
      row.plan.plan_id(), row.plan.graph_id(), now_ns, row.plan.feasible(),
      row.plan.budget_bytes(), Blob{request}, Blob{body});
}

StatusOr<int64_t> BytesToSave(Database& db, const PlanRow& row) {
  const auto bytes = static_cast<int64_t>(row.plan.ByteSizeLong() +
                                          row.request.ByteSizeLong());
  ASSIGN_OR_RETURN(const auto stored,
                   db.First("SELECT length(body) + length(request) FROM plans"
                            " WHERE plan_id = ?",
                            row.plan.plan_id()));
  return stored ? bytes - stored->Int(0) : bytes;
}

StatusOr<std::string> FindAnswer(Database& db, std::string_view request) {
  ASSIGN_OR_RETURN(
      const auto row,
      db.First("SELECT plan_id FROM reprise_answers WHERE request = ?",
               request));
  return row ? std::string(row->Text(0)) : std::string();
}

Status SaveAnswer(Database& db, std::string_view request,
                  std::string_view plan_id) {
  return db.Run(
      "INSERT INTO reprise_answers VALUES (?, ?)"
      " ON CONFLICT (request) DO UPDATE SET plan_id = excluded.plan_id",
      request, plan_id);
}

StatusOr<PlanRow> LoadPlan(Database& db, std::string_view plan_id) {
  ASSIGN_OR_RETURN(
      const auto row,
      db.First("SELECT body, request FROM plans WHERE plan_id = ?", plan_id));
  if (!row) return NoPlan(plan_id);
  const std::string_view body = row->Bytes(0);
  const std::string_view request = row->Bytes(1);
  PlanRow loaded;
  if (!loaded.plan.ParseFromArray(body.data(), static_cast<int>(body.size())) ||
      !loaded.request.ParseFromArray(request.data(),
                                     static_cast<int>(request.size()))) {
    return Damaged("plan", plan_id);
  }
  return loaded;
}

}  // namespace reprise::server
