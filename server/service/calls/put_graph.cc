// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "formats/convert/digest.h"
#include "formats/convert/graph_proto.h"
#include "server/core/change.h"
#include "server/core/grpc_peer.h"
#include "server/core/log.h"
#include "server/service/calls/grpc_services.h"
#include "server/service/calls/handlers.h"
#include "server/service/calls/rules.h"
#include "server/store/plan_rows.h"
#include "server/store/quota_rows.h"
#include "server/store/run_rows.h"
#include "server/store/session_rows.h"

namespace reprise::server {
namespace {

// Whether two graphs are the same step, whatever was measured of it.
bool SameStep(v1::StepGraph a, v1::StepGraph b) {
  for (v1::StepGraph* graph : {&a, &b}) {
    graph->clear_timing();
    graph->clear_launch_gap_ns();
    graph->clear_static_bytes();
    for (v1::Op& op : *graph->mutable_ops()) {
      op.clear_time_ns();
      op.clear_workspace_bytes();
    }
  }
  return a.SerializeAsString() == b.SerializeAsString();
}

StatusOr<v1::GraphRef> PutGraph(Services& services, const Caller& caller,
                                const std::string& run_id,
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
  Status taken = OkStatus();  // another graph has this id
  RETURN_IF_ERROR(services.store.Write([&](Database& db) -> Status {
    const int64_t now_ns = RealtimeNs();
    if (!run_id.empty()) {
      RETURN_IF_ERROR(CheckOwner(db, run_id, caller));
    }
    const StatusOr<bool> is_new = SaveGraph(db, ref.graph_id(), graph, now_ns);
    if (is_new.status().code() == Code::kAlreadyExists) {
      taken = is_new.status();
      // With other measurements it is still what the caller has.
      ASSIGN_OR_RETURN(const v1::StepGraph stored,
                       LoadGraph(db, ref.graph_id()));
      if (!SameStep(stored, graph)) return OkStatus();
    } else {
      RETURN_IF_ERROR(is_new.status());
    }
    if (caller.access.role != Role::kAdmin) {
      RETURN_IF_ERROR(AddGraphOwner(db, ref.graph_id(), caller.who));
    }
    if (run_id.empty() || !taken.ok()) return OkStatus();
    RETURN_IF_ERROR(ClaimRun(db, run_id, caller, now_ns));
    if (*is_new) {
      RETURN_IF_ERROR(TakeRoom(db, services.quota, run_id, "step graph",
                               static_cast<int64_t>(serialized.size())));
    }
    return SetRunGraph(db, run_id, ref.graph_id());
  }));
  RETURN_IF_ERROR(taken);
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

constexpr size_t kGraphPartBytes = 1 << 20;

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxGraphBytes = 64 << 20;
constexpr size_t kMaxPartBytes = 1 << 20;
constexpr auto kSilence = std::chrono::seconds(30);

}  // namespace

Status NoRoomForGraph(const Services& services) {
  return ResourceExhausted(StrCat(
      "step graphs that are being sent may have ",
      FormatBytes(static_cast<int64_t>(services.sent_graphs.most_bytes())),
      " together, and this one does not fit now; try again when others are "
      "through"));
}

StatusOr<v1::GraphRef> ReceiveGraph(
    Services& services, const Caller& caller, const std::string& run_id,
    const std::string& graph_id,
    const std::function<StatusOr<std::string>()>& read) {
  const StatusOr<std::string> serialized = read();
  StatusOr<v1::GraphRef> ref =
      serialized.ok()
          ? PutGraph(services, caller, run_id, graph_id, *serialized)
          : StatusOr<v1::GraphRef>(serialized.status());
  const std::string id = ref.ok() ? ref->graph_id() : graph_id;
  Change change{.caller = caller,
                .action = "graph",
                .run_id = run_id,
                .subject = id.empty() ? "a graph" : StrCat("graph ", id)};
  change.End(ref.status());
  LogChange(change);
  return ref;
}

Status SendGraph(Services& services, const v1::GraphRef& request, Call& call) {
  RETURN_IF_ERROR(formats::ParseHexId(request.graph_id()).status());
  ASSIGN_OR_RETURN(const v1::StepGraph graph,
                   services.store.Get(LoadGraph, request.graph_id()));
  const std::string bytes = graph.SerializeAsString();
  for (size_t at = 0; at < bytes.size(); at += kGraphPartBytes) {
    v1::GraphPart part;
    part.set_data(bytes.substr(at, kGraphPartBytes));
    if (at == 0) part.set_graph_id(request.graph_id());
    call.Send(part);
  }
  return OkStatus();
}

class PutGraphCall final : public grpc::ServerReadReactor<v1::GraphPart> {
 public:
  PutGraphCall(GraphUploads& uploads, grpc::CallbackServerContext* context,
               v1::GraphRef* response)
      : uploads_(uploads), context_(context), response_(response) {}

  void Begin() { StartRead(&part_); }

  void OnReadDone(bool ok) override {
    heard_ = Clock::now();
    if (!ok) {
      Store();
      return;
    }
    const Status status = Take();
    if (!status.ok()) {
      Finish(ToGrpc(status));
      return;
    }
    StartRead(&part_);
  }
  void OnDone() override {
    uploads_.Remove(this, bytes_);
    delete this;
  }

  void CancelIfSilent(Clock::time_point now) {
    if (!storing_ && now - heard_.load() >= kSilence) context_->TryCancel();
  }

 private:
  Status Take() {
    const size_t bytes = part_.data().size();
    if (bytes > kMaxPartBytes) {
      return ResourceExhausted(StrCat("part ", parts_.size(), ": at most ",
                                      kMaxPartBytes, " bytes, got ", bytes));
    }
    if (bytes_ + bytes > kMaxGraphBytes) {
      return ResourceExhausted(StrCat("the step graph is larger than ",
                                      kMaxGraphBytes,
                                      " bytes; capture a shorter step"));
    }
    if (!uploads_.TakeRoom(bytes)) {
      return NoRoomForGraph(uploads_.services_);
    }
    bytes_ += bytes;
    if (parts_.empty()) {
      run_id_ = part_.run_id();
      graph_id_ = part_.graph_id();
    }
    parts_.push_back(std::move(*part_.mutable_data()));
    return OkStatus();
  }

  void Store() {
    if (context_->IsCancelled()) {
      Finish(
          {grpc::StatusCode::CANCELLED, "the step graph was not sent whole"});
      return;
    }
    storing_ = true;
    auto work = [this,
                 caller = uploads_.services_.identify(
                     PeerOfCall(*context_),
                     AccessOf(*context_, uploads_.services_.authenticate))] {
      StatusOr<v1::GraphRef> ref =
          ReceiveGraph(uploads_.services_, caller, run_id_, graph_id_, [this] {
            std::string serialized;
            serialized.reserve(bytes_);
            for (std::string& part : parts_) {
              serialized += part;
              part = {};
            }
            return serialized;
          });
      if (ref.ok()) *response_ = std::move(*ref);
      Finish(ToGrpc(ref.status()));
    };
    if (uploads_.services_.short_work.Post(std::move(work))) return;
    Finish(
        {grpc::StatusCode::UNAVAILABLE, "the server is busy or shutting down"});
  }

  GraphUploads& uploads_;
  grpc::CallbackServerContext* const context_;
  v1::GraphRef* const response_;
  v1::GraphPart part_;
  std::vector<std::string> parts_;
  size_t bytes_ = 0;
  std::string run_id_;
  std::string graph_id_;
  std::atomic<Clock::time_point> heard_ = Clock::now();
  std::atomic<bool> storing_ = false;
};

grpc::ServerReadReactor<v1::GraphPart>* GraphUploads::Begin(
    grpc::CallbackServerContext* context, v1::GraphRef* response) {
  auto* call = new PutGraphCall(*this, context, response);
  const Status may = CheckMayCall(AccessOf(*context, services_.authenticate),
                                  "/reprise.v1.Planner/PutGraph");
  {
    const std::lock_guard lock(mutex_);
    calls_.insert(call);
  }
  if (may.ok()) {
    call->Begin();
  } else {
    call->Finish(ToGrpc(may));
  }
  return call;
}

bool GraphUploads::TakeRoom(uint64_t bytes) {
  if (services_.sent_graphs.Take(bytes)) return true;
  const std::lock_guard lock(mutex_);
  const std::set<PutGraphCall*> all = calls_;
  for (PutGraphCall* call : all) {
    if (calls_.contains(call)) call->CancelIfSilent(Clock::now());
  }
  return services_.sent_graphs.Take(bytes);
}

void GraphUploads::Remove(PutGraphCall* call, uint64_t bytes) {
  services_.sent_graphs.Give(bytes);
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
}

}  // namespace reprise::server
