// SPDX-License-Identifier: Apache-2.0
#include "remote.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <charconv>
#include <chrono>
#include <utility>

#include "reprise/v1/planner.grpc.pb.h"

namespace reprise {
namespace {

// As in server/service/calls/put_graph_call.cc.
constexpr size_t kPartBytes = 1 << 20;
constexpr int kMostReceivedBytes = 64 << 20;
constexpr std::chrono::minutes kLongest(10);

std::string Why(const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
    return status.error_message();
  }
  return "no server answers: " + status.error_message();
}

// The executors that their name says all about.
std::string CheckExecutor(const std::string& executor) {
  if (executor == "free" || executor == "once") return {};
  return "executor: must be free or once, got '" + executor.substr(0, 80) + "'";
}

}  // namespace

struct Remote::Channel {
  std::string token;
  std::unique_ptr<v1::Planner::Stub> stub;

  // Prepares a call: a deadline, and the token.
  void Prepare(grpc::ClientContext* context) const {
    context->set_deadline(std::chrono::system_clock::now() + kLongest);
    if (!token.empty()) {
      context->AddMetadata("authorization", "Bearer " + token);
    }
  }

  // Sends a graph; returns its id, or "" with the reason in `why`.
  std::string Put(const Graph& graph, std::string* why) const {
    *why = graph.Check();
    if (!why->empty()) return {};
    v1::StepGraph message;
    const auto read =
        google::protobuf::util::JsonStringToMessage(graph.ToJson(), &message);
    if (!read.ok()) {
      *why = "the graph is no valid message: a name of it is not UTF-8";
      return {};
    }
    const std::string bytes = message.SerializeAsString();
    grpc::ClientContext context;
    Prepare(&context);
    v1::GraphRef ref;
    const auto writer = stub->PutGraph(&context, &ref);
    for (size_t at = 0; at < bytes.size(); at += kPartBytes) {
      v1::GraphPart part;
      part.set_data(bytes.substr(at, kPartBytes));
      if (!writer->Write(part)) break;  // Finish says why
    }
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    if (!status.ok()) *why = Why(status);
    return status.ok() ? ref.graph_id() : std::string();
  }
};

Remote::Remote(const std::string& address, const std::string& token,
               const std::string& authority)
    : channel_(std::make_unique<Channel>()) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMostReceivedBytes);
  std::shared_ptr<grpc::ChannelCredentials> credentials =
      grpc::InsecureChannelCredentials();
  if (!authority.empty()) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority;
    credentials = grpc::SslCredentials(options);
  }
  channel_->token = token;
  channel_->stub = v1::Planner::NewStub(
      grpc::CreateCustomChannel(address, credentials, arguments));
}

Remote::~Remote() = default;

Answer Remote::Ask(const Graph& graph, const std::string& budget,
                   const std::string& executor, uint32_t time_limit_ms) {
  Answer answer;
  v1::PlanRequest request;
  answer.why = CheckExecutor(executor);
  if (!answer.why.empty()) return answer;
  request.set_graph_id(channel_->Put(graph, &answer.why));
  if (!answer.why.empty()) return answer;
  request.set_budget(budget);
  request.mutable_capabilities()->set_executor(executor);
  request.set_time_limit_ms(time_limit_ms);
  grpc::ClientContext context;
  channel_->Prepare(&context);
  const auto reader = channel_->stub->Plan(&context, request);
  v1::PlanEvent event;
  v1::Plan plan;
  while (reader->Read(&event)) {
    if (event.has_plan()) plan = std::move(*event.mutable_plan());
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok() || !plan.feasible()) {
    answer.why = status.ok() ? plan.sentence() : Why(status);
    answer.smallest_bytes = plan.infeasible().smallest_budget_bytes();
    return answer;
  }
  const std::string& id = plan.plan_id();
  std::from_chars(id.data(), id.data() + id.size(), answer.plan_id, 16);
  answer.peak_bytes = plan.peak_bytes();
  answer.time_ns = plan.time_ns();
  answer.schedule.assign(plan.schedule().begin(), plan.schedule().end());
  answer.ok = true;
  return answer;
}

Curve Remote::Sweep(const Graph& graph, uint32_t points,
                    const std::string& executor) {
  Curve curve;
  v1::SweepRequest request;
  curve.why = CheckExecutor(executor);
  if (!curve.why.empty()) return curve;
  request.set_graph_id(channel_->Put(graph, &curve.why));
  if (!curve.why.empty()) return curve;
  request.set_points(points);
  request.mutable_capabilities()->set_executor(executor);
  grpc::ClientContext context;
  channel_->Prepare(&context);
  const auto reader = channel_->stub->Sweep(&context, request);
  v1::TradeoffPoint point;
  while (reader->Read(&point)) {
    curve.points.push_back({.budget_bytes = point.budget_bytes(),
                            .feasible = point.feasible(),
                            .peak_bytes = point.peak_bytes(),
                            .overhead = point.overhead(),
                            .bound = point.bound()});
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) curve.why = Why(status);
  return curve;
}

}  // namespace reprise
