// SPDX-License-Identifier: Apache-2.0
#include "server/forward/run_sender.h"

#include <chrono>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "server/core/log.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

constexpr auto kPatience = std::chrono::seconds(30);
constexpr size_t kPartBytes = 1 << 20;
// The centre takes messages of 4 MiB.
constexpr size_t kMostPlanBytes = (4 << 20) - 4096;

// Whether the centre, as it is now, answers no other call either.
bool IsAway(grpc::StatusCode code) {
  return code == grpc::StatusCode::UNAVAILABLE ||
         code == grpc::StatusCode::UNAUTHENTICATED ||
         code == grpc::StatusCode::PERMISSION_DENIED ||
         code == grpc::StatusCode::DEADLINE_EXCEEDED ||
         code == grpc::StatusCode::CANCELLED;
}

// Whether it is of no use to send the same again.
bool IsFinal(Code code) {
  return code == Code::kInvalidArgument || code == Code::kAlreadyExists ||
         code == Code::kFailedPrecondition || code == Code::kUnimplemented ||
         code == Code::kNotFound;
}

// The plans that the executors of the run had.
StatusOr<std::vector<std::string>> LoadPlansOf(Database& db,
                                               const std::string& run_id) {
  ASSIGN_OR_RETURN(Statement select,
                   db.Select("SELECT DISTINCT s.plan_id FROM plan_states s"
                             " JOIN plans p ON p.plan_id = s.plan_id"
                             " WHERE s.run_id = ? ORDER BY s.plan_id",
                             run_id));
  return select.All(
      [](const Statement& row) { return std::string(row.Text(0)); });
}

}  // namespace

RunSender::RunSender(Store& store, std::shared_ptr<grpc::Channel> channel,
                     ForwardOptions options, Outbox& outbox, int64_t started_ns)
    : store_(store),
      options_(std::move(options)),
      outbox_(outbox),
      started_ns_(started_ns),
      planner_(v1::Planner::NewStub(channel)),
      forward_(v1::Forward::NewStub(channel)),
      query_(v1::Query::NewStub(channel)),
      control_(v1::Control::NewStub(channel)) {}

void RunSender::Cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (under_way_ != nullptr) under_way_->TryCancel();
}

Status RunSender::Call(
    const std::function<grpc::Status(grpc::ClientContext&)>& call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_) return Unavailable("this daemon is shutting down");
    under_way_ = &context;
  }
  const grpc::Status status = call(context);
  {
    const std::lock_guard lock(mutex_);
    under_way_ = nullptr;
  }
  if (status.ok()) return OkStatus();
  if (IsAway(status.error_code())) return Unavailable(WhyNot(options_, status));
  return {static_cast<Code>(status.error_code()), status.error_message()};
}

Status RunSender::Settle(const Status& sent, const std::string& what) {
  if (sent.ok() || !IsFinal(sent.code())) return sent;
  if (refused_.insert(what).second) {
    LogWarning("forward_refused",
               StrCat("the centre does not take ", what, ": ", sent.message()));
  }
  return OkStatus();
}

Status RunSender::Greet() {
  v1::ServerStatus status;
  const Status asked = Call([&](grpc::ClientContext& context) {
    return query_->GetStatus(&context, v1::StatusRequest(), &status);
  });
  if (!asked.ok()) return asked;
  if (status.started_ns() == started_ns_) {
    return FailedPrecondition(StrCat("--forward-to: ", options_.target,
                                     " is this daemon itself; nothing is "
                                     "forwarded"));
  }
  return OkStatus();
}

// ---- What is due ----

Status RunSender::Load() {
  ASSIGN_OR_RETURN(sent_, outbox_.Runs());
  return OkStatus();
}

bool RunSender::Due(const std::string& run_id, const RunFacts& facts) const {
  const auto known = sent_.find(run_id);
  return facts.Text() !=
         (known == sent_.end() ? RunFacts().Text() : known->second);
}

Status RunSender::KeepOnly(const std::set<std::string>& runs) {
  for (auto known = sent_.begin(); known != sent_.end();) {
    if (runs.contains(known->first)) {
      ++known;
      continue;
    }
    RETURN_IF_ERROR(outbox_.RemoveRun(known->first));
    known = sent_.erase(known);
  }
  return OkStatus();
}

Status RunSender::Send(const std::string& run_id, const RunFacts& facts) {
  ASSIGN_OR_RETURN(const std::vector<std::string> plans,
                   store_.Get(LoadPlansOf, run_id));
  for (const std::string& plan_id : plans) {
    if (plan_id == facts.plan_id) continue;
    RETURN_IF_ERROR(SendPlan(run_id, plan_id, /*newest=*/false));
  }
  if (!Due(run_id, facts)) return OkStatus();
  if (!facts.graph_id.empty()) {
    RETURN_IF_ERROR(SendGraph(run_id, facts.graph_id));
  }
  if (!facts.plan_id.empty()) {
    RETURN_IF_ERROR(SendPlan(run_id, facts.plan_id, /*newest=*/true));
  }
  RETURN_IF_ERROR(SendEnd(run_id, facts));
  RETURN_IF_ERROR(outbox_.SetRun(run_id, facts.Text()));
  sent_[run_id] = facts.Text();
  return OkStatus();
}

// ---- The calls ----

Status RunSender::SendGraph(const std::string& run_id,
                            const std::string& graph_id) {
  ASSIGN_OR_RETURN(const v1::StepGraph graph, store_.Get(LoadGraph, graph_id));
  const std::string bytes = graph.SerializeAsString();
  const Status sent = Call([&](grpc::ClientContext& context) {
    v1::GraphRef ref;
    const auto writer = planner_->PutGraph(&context, &ref);
    v1::GraphPart part;
    part.set_run_id(run_id);
    part.set_graph_id(graph_id);
    for (size_t at = 0; at < bytes.size(); at += kPartBytes) {
      part.set_data(bytes.substr(at, kPartBytes));
      // False: the centre has ended the call, and Finish says why.
      if (!writer->Write(part)) break;
      part.Clear();
    }
    writer->WritesDone();
    return writer->Finish();
  });
  // The centre has this graph from another machine of the job, with the times
  // that were measured there.
  const bool has = sent.code() == Code::kAlreadyExists;
  if (has && run_id.empty()) return OkStatus();
  const Status known = !has ? sent : Call([&](grpc::ClientContext& context) {
    v1::SetRunGraphRequest request;
    request.set_run_id(run_id);
    request.set_graph_id(graph_id);
    v1::SetRunGraphResponse response;
    return forward_->SetRunGraph(&context, request, &response);
  });
  return Settle(known, StrCat("step graph ", graph_id, " of run ", run_id));
}

Status RunSender::SendPlan(const std::string& run_id,
                           const std::string& plan_id, bool newest) {
  const std::string what = StrCat("plan ", plan_id, " of run ", run_id);
  if (refused_.contains(what)) return OkStatus();
  ASSIGN_OR_RETURN(const bool has, outbox_.HasPlan(run_id, plan_id));
  if (has && !newest) return OkStatus();
  v1::PutPlanRequest request;
  request.set_run_id(run_id);
  request.set_newest(newest);
  ASSIGN_OR_RETURN(PlanRow row, store_.Get(LoadPlan, plan_id));
  *request.mutable_plan() = std::move(row.plan);
  *request.mutable_request() = std::move(row.request);
  if (request.ByteSizeLong() > kMostPlanBytes) {
    return Settle(InvalidArgument("it is larger than 4 MiB"), what);
  }
  const auto send = [&] {
    return Call([&](grpc::ClientContext& context) {
      v1::PutPlanResponse response;
      return forward_->PutPlan(&context, request, &response);
    });
  };
  Status sent = send();
  if (sent.code() == Code::kNotFound) {
    // A plan of a graph that is not the run's newest.
    RETURN_IF_ERROR(SendGraph("", request.plan().graph_id()));
    sent = send();
  }
  RETURN_IF_ERROR(Settle(sent, what));
  return sent.ok() ? outbox_.AddPlan(run_id, plan_id) : OkStatus();
}

Status RunSender::SendEnd(const std::string& run_id, const RunFacts& facts) {
  if (facts.exit_code < 0) return OkStatus();
  v1::ReportEndRequest request;
  request.set_run_id(run_id);
  request.mutable_end()->set_exit_code(static_cast<int32_t>(facts.exit_code));
  request.mutable_end()->set_signal(static_cast<int32_t>(facts.exit_signal));
  const Status sent = Call([&](grpc::ClientContext& context) {
    v1::ReportEndResponse response;
    return control_->ReportEnd(&context, request, &response);
  });
  return Settle(sent, StrCat("the end of run ", run_id));
}

}  // namespace reprise::server
