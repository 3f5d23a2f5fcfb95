// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/server/server_client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/data_dir.h"
#include "base/str_cat.h"
#include "clients/cli/core/files.h"
#include "clients/cli/core/plan_options.h"
#include "clients/cli/server/open_channel.h"
#include "clients/cli/server/private_daemon.h"

namespace reprise::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::system_clock;

// Makes a unary call that should be answered soon.
template <typename Stub, typename Request, typename Response>
StatusOr<Response> Ask(Stub& stub,
                       grpc::Status (Stub::*call)(grpc::ClientContext*,
                                                  const Request&, Response*),
                       const Request& request, const Endpoint& endpoint,
                       seconds patience = seconds(10)) {
  grpc::ClientContext context;
  context.set_deadline(system_clock::now() + patience);
  Response response;
  RETURN_IF_ERROR(
      FromGrpc((stub.*call)(&context, request, &response), endpoint));
  return response;
}

// On Ctrl-C asks the server to finish the call with what it has; if it does not
// respond, cancels the call.
class FinishOnInterrupt {
 public:
  FinishOnInterrupt(v1::Planner::Stub& planner, const std::string& request_id,
                    grpc::ClientContext& context)
      : thread_([this, &planner, request_id, &context] {
          while (!done_) {
            if (CatchInterrupt::Asked()) {
              if (!Finish(planner, request_id)) context.TryCancel();
              return;
            }
            std::this_thread::sleep_for(milliseconds(20));
          }
        }) {}
  ~FinishOnInterrupt() {
    done_ = true;
    thread_.join();
  }

 private:
  static bool Finish(v1::Planner::Stub& planner,
                     const std::string& request_id) {
    grpc::ClientContext context;
    context.set_deadline(system_clock::now() + seconds(2));
    v1::FinishPlanRequest request;
    request.set_request_id(request_id);
    v1::FinishPlanResponse response;
    return planner.FinishPlan(&context, request, &response).ok();
  }

  CatchInterrupt catch_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

// Returns a name for a call to FinishPlan; it must be unique, not unguessable.
std::string NewRequestId() {
  std::random_device device;
  return StrCat("cli-", device(), "-", device());
}

// Reads a stream of progress that ends with a plan.
StatusOr<v1::Plan> ReadPlanEvents(grpc::ClientReader<v1::PlanEvent>& stream,
                                  const Endpoint& endpoint, Console& console) {
  v1::Plan plan;
  bool got_plan = false;
  for (v1::PlanEvent event; stream.Read(&event);) {
    if (event.has_progress()) {
      const v1::PlanProgress& progress = event.progress();
      console.Progress(
          ProgressText(static_cast<int64_t>(progress.elapsed_ms() * 1e6),
                       progress.overhead(), progress.bound()));
    }
    if (event.has_plan()) {
      plan = event.plan();
      got_plan = true;
    }
  }
  RETURN_IF_ERROR(FromGrpc(stream.Finish(), endpoint));
  if (!got_plan) return Internal("the server ended without a plan");
  return plan;
}

}  // namespace

StatusOr<ServerClient> ServerClient::ConnectOrStart(const Globals& globals,
                                                    bool to_store) {
  StatusOr<ServerClient> client = Connect(globals);
  if (client.ok() || client.status().code() != Code::kUnavailable ||
      NamesServer(globals)) {
    return client;
  }
  const StatusOr<std::string> folder = DefaultDataDir();
  if (!to_store && (!folder.ok() || !Exists(*folder + "/reprise.db"))) {
    return client;
  }
  RETURN_IF_ERROR(EnsureDaemon().status());
  return Connect(globals);
}

StatusOr<ServerClient> ServerClient::Connect(const Globals& globals) {
  ASSIGN_OR_RETURN(Endpoint endpoint, FindServer(globals));
  ServerClient client(std::move(endpoint));
  ASSIGN_OR_RETURN(const auto channel, OpenChannel(client.endpoint_));
  if (!channel->WaitForConnected(system_clock::now() + seconds(2))) {
    return Unavailable(
        StrCat("the server at ", client.endpoint_.target, " does not answer",
               client.endpoint_.tls
                   ? " over TLS with a certificate that is trusted here; see "
                     "`reprise doctor`, or name its CA with --ca"
                   : StrCat("; ", kStartHint)));
  }
  // Only now: who listened before it connected may be another one.
  RETURN_IF_ERROR(client.endpoint_.CheckReceiver());
  client.channel_ = channel;
  client.query_ = v1::Query::NewStub(channel);
  client.planner_ = v1::Planner::NewStub(channel);
  return client;
}

StatusOr<v1::ServerStatus> ServerClient::GetStatus() const {
  return Ask(*query_, &v1::Query::Stub::GetStatus, {}, endpoint_);
}

StatusOr<v1::Run> ServerClient::GetRun(const std::string& run_id) const {
  v1::GetRunRequest request;
  request.set_run_id(run_id);
  return Ask(*query_, &v1::Query::Stub::GetRun, request, endpoint_);
}

StatusOr<v1::ListRunsResponse> ServerClient::ListRuns(uint32_t limit,
                                                      bool mine) const {
  v1::ListRunsRequest request;
  request.set_limit(limit);
  request.set_mine(mine);
  return Ask(*query_, &v1::Query::Stub::ListRuns, request, endpoint_);
}

StatusOr<v1::GetMomentsResponse> ServerClient::GetMoments(
    const std::string& run_id) const {
  v1::GetMomentsRequest request;
  request.set_run_id(run_id);
  return Ask(*query_, &v1::Query::Stub::GetMoments, request, endpoint_);
}

StatusOr<v1::LiveMemory> ServerClient::GetMemory(const std::string& run_id,
                                                 bool planned,
                                                 uint32_t limit) const {
  v1::GetMemoryRequest request;
  request.set_run_id(run_id);
  request.set_planned(planned);
  request.set_limit(limit);
  // A recording of millions of events is indexed by its first question.
  return Ask(*query_, &v1::Query::Stub::GetMemory, request, endpoint_,
             seconds(60));
}

StatusOr<v1::Explanation> ServerClient::Explain(
    const std::string& plan_id) const {
  v1::ExplainRequest request;
  request.set_plan_id(plan_id);
  return Ask(*planner_, &v1::Planner::Stub::Explain, request, endpoint_);
}

StatusOr<v1::Verification> ServerClient::Verify(
    const std::string& plan_id) const {
  v1::VerifyRequest request;
  request.set_plan_id(plan_id);
  return Ask(*planner_, &v1::Planner::Stub::Verify, request, endpoint_);
}

StatusOr<v1::Comparison> ServerClient::Compare(const std::string& a,
                                               const std::string& b) const {
  v1::CompareRequest request;
  request.set_a(a);
  request.set_b(b);
  return Ask(*query_, &v1::Query::Stub::Compare, request, endpoint_);
}

StatusOr<v1::StepGraph> ServerClient::GetGraph(
    const std::string& graph_id) const {
  grpc::ClientContext context;
  v1::GraphRef request;
  request.set_graph_id(graph_id);
  const auto stream = planner_->GetGraph(&context, request);
  std::string bytes;
  for (v1::GraphPart part; stream->Read(&part);) bytes += part.data();
  RETURN_IF_ERROR(FromGrpc(stream->Finish(), endpoint_));
  v1::StepGraph graph;
  if (!graph.ParseFromString(bytes)) {
    return Internal(StrCat("graph ", graph_id, " came damaged"));
  }
  return graph;
}

StatusOr<v1::WindowStatus> ServerClient::StartWindow(const std::string& run_id,
                                                     uint32_t steps,
                                                     uint64_t at_step) const {
  v1::StartWindowRequest request;
  request.set_run_id(run_id);
  request.set_steps(steps);
  request.set_at_step(at_step);
  const auto control = v1::Control::NewStub(channel_);
  return Ask(*control, &v1::Control::Stub::StartWindow, request, endpoint_);
}

Status ServerClient::ReportEnd(const std::string& run_id,
                               const v1::ProcessEnd& end) const {
  v1::ReportEndRequest request;
  request.set_run_id(run_id);
  *request.mutable_end() = end;
  const auto control = v1::Control::NewStub(channel_);
  return Ask(*control, &v1::Control::Stub::ReportEnd, request, endpoint_)
      .status();
}

Status ServerClient::ReadStep(
    const std::string& run_id, bool planned,
    const std::function<void(const v1::StepPart&)>& take) const {
  grpc::ClientContext context;
  v1::ReadStepRequest request;
  request.set_run_id(run_id);
  request.set_planned(planned);
  const auto stream = query_->ReadStep(&context, request);
  for (v1::StepPart part; stream->Read(&part);) take(part);
  return FromGrpc(stream->Finish(), endpoint_);
}

StatusOr<v1::Plan> ServerClient::Plan(const v1::PlanRequest& request,
                                      Console& console) const {
  grpc::ClientContext context;
  v1::PlanRequest named = request;
  named.set_request_id(NewRequestId());
  const FinishOnInterrupt finish(*planner_, named.request_id(), context);
  const auto stream = planner_->Plan(&context, named);
  StatusOr<v1::Plan> plan = ReadPlanEvents(*stream, endpoint_, console);
  if (CatchInterrupt::Asked() && !plan.ok()) {
    return Cancelled("interrupted before a plan was found");
  }
  return plan;
}

StatusOr<v1::Plan> ServerClient::ApplyBudget(const std::string& run_id,
                                             const std::string& budget,
                                             Console& console) const {
  grpc::ClientContext context;
  v1::ApplyBudgetRequest request;
  request.set_run_id(run_id);
  request.set_budget(budget);
  const auto control = v1::Control::NewStub(channel_);
  const auto stream = control->ApplyBudget(&context, request);
  return ReadPlanEvents(*stream, endpoint_, console);
}

Status ServerClient::Sweep(
    const v1::SweepRequest& request,
    const std::function<void(const v1::TradeoffPoint&)>& on_point) const {
  grpc::ClientContext context;
  v1::SweepRequest named = request;
  named.set_request_id(NewRequestId());
  const FinishOnInterrupt finish(*planner_, named.request_id(), context);
  const auto stream = planner_->Sweep(&context, named);
  for (v1::TradeoffPoint point; stream->Read(&point);) on_point(point);
  const grpc::Status status = stream->Finish();
  if (CatchInterrupt::Asked()) return OkStatus();
  return FromGrpc(status, endpoint_);
}

}  // namespace reprise::cli
