// SPDX-License-Identifier: Apache-2.0
#include "base/str_cat.h"
#include "formats/convert/digest.h"
#include "formats/convert/graph_proto.h"
#include "server/core/log.h"
#include "server/service/calls/handlers.h"
#include "server/store/identifier.h"
#include "server/store/plan_rows.h"
#include "server/store/quota_rows.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

StatusOr<v1::GraphRef> PutGraph(Services& services, const std::string& run_id,
                                const std::string& graph_id,
                                const std::string& serialized) {
  if (!run_id.empty()) {
    RETURN_IF_ERROR(CheckIdentifier("run_id", run_id));
  }
  if (!graph_id.empty()) {
    RETURN_IF_ERROR(formats::ParseHexId(graph_id).status());
  }
  ASSIGN_OR_RETURN(const v1::StepGraph graph,
                   formats::ReadGraphBytes(serialized));
  v1::GraphRef ref;
  ref.set_graph_id(graph_id.empty() ? formats::HexId(formats::IdOf(serialized))
                                    : graph_id);
  RETURN_IF_ERROR(services.store.Write([&](Database& db) -> Status {
    const int64_t now_ns = RealtimeNs();
    ASSIGN_OR_RETURN(const bool is_new,
                     SaveGraph(db, ref.graph_id(), graph, now_ns));
    if (run_id.empty()) return OkStatus();
    RETURN_IF_ERROR(EnsureRun(db, run_id, now_ns));
    if (is_new) {
      RETURN_IF_ERROR(TakeRoom(db, services.quota, run_id, "step graph",
                               static_cast<int64_t>(serialized.size())));
    }
    return SetRunGraph(db, run_id, ref.graph_id());
  }));
  LogInfo("graph_stored",
          StrCat("graph ", ref.graph_id(), run_id.empty() ? "" : " of run ",
                 run_id, ": ", graph.ops_size(), " ops, ",
                 graph.storages_size(), " storages"),
          {{"run_id", run_id},
           {"graph_id", ref.graph_id()},
           {"ops", int64_t{graph.ops_size()}}});
  if (!run_id.empty()) services.hub.Notify(run_id);
  return ref;
}

v1::AuditEntry UploadEntry(const Caller& caller, const std::string& run_id,
                           const std::string& graph_id, const Status& status) {
  v1::AuditEntry entry;
  entry.set_who(caller.who);
  entry.set_peer(caller.peer);
  entry.set_action("graph");
  entry.set_run_id(run_id);
  entry.set_subject(graph_id.empty() ? "a graph" : StrCat("graph ", graph_id));
  entry.set_outcome(std::string(OutcomeOf(status)));
  if (!status.ok()) entry.set_detail(status.message());
  return entry;
}

}  // namespace

StatusOr<v1::GraphRef> ReceiveGraph(
    Services& services, const Caller& caller, const std::string& run_id,
    const std::string& graph_id,
    const std::function<StatusOr<std::string>()>& read) {
  const StatusOr<std::string> serialized = read();
  StatusOr<v1::GraphRef> ref =
      serialized.ok() ? PutGraph(services, run_id, graph_id, *serialized)
                      : StatusOr<v1::GraphRef>(serialized.status());
  services.audit.Add(UploadEntry(
      caller, run_id, ref.ok() ? ref->graph_id() : graph_id, ref.status()));
  return ref;
}

}  // namespace reprise::server
