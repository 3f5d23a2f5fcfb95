// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/digest.h"
#include "server/service/calls/handlers.h"
#include "server/store/plan_rows.h"

namespace reprise::server {

namespace {

constexpr size_t kGraphPartBytes = 1 << 20;

Status SendGraph(Services& services, const v1::GraphRef& request, Call& call) {
  RETURN_IF_ERROR(formats::ParseHexId(request.graph_id()).status());
  std::string bytes;
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const v1::StepGraph graph,
                     LoadGraph(db, request.graph_id()));
    graph.SerializeToString(&bytes);
    return OkStatus();
  }));
  for (size_t at = 0; at < bytes.size(); at += kGraphPartBytes) {
    v1::GraphPart part;
    part.set_data(bytes.substr(at, kGraphPartBytes));
    if (at == 0) part.set_graph_id(request.graph_id());
    call.Send(part);
  }
  return OkStatus();
}

}  // namespace

void StartGetGraph(Services& services,
                   std::shared_ptr<const v1::GraphRef> request,
                   std::shared_ptr<Call> call) {
  auto work = [&services, request, call] {
    call->Finish(SendGraph(services, *request, *call));
  };
  if (services.short_work.Post(std::move(work))) return;
  call->Finish(Unavailable("the server is busy or shutting down"));
}

}  // namespace reprise::server
