// SPDX-License-Identifier: Apache-2.0
#include "server/service/grpc_services.h"

#include <grpcpp/grpcpp.h>

#include <cassert>
#include <deque>
#include <mutex>
#include <utility>

#include "reprise/v1/admin.grpc.pb.h"
#include "reprise/v1/forward.grpc.pb.h"
#include "reprise/v1/planner.grpc.pb.h"
#include "reprise/v1/query.grpc.pb.h"
#include "server/grpc_peer.h"
#include "server/service/grpc_status.h"
#include "server/service/put_graph_call.h"

namespace reprise::server {

namespace {

// ---- UnaryCall ----

template <typename Response>
class UnaryCall final : public Call, public grpc::ServerUnaryReactor {
 public:
  UnaryCall(Response* response, std::string peer)
      : response_(response), peer_(std::move(peer)) {}
  void Hold(std::shared_ptr<UnaryCall> self) { self_ = std::move(self); }

  void Send(const google::protobuf::Message& message) override {
    response_->CopyFrom(message);
  }
  void Finish(const Status& status) override {
    grpc::ServerUnaryReactor::Finish(ToGrpc(status));
  }
  size_t unsent() const override { return 0; }
  bool cancelled() const override { return cancelled_; }
  std::string peer() const override { return peer_; }

  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { const auto last = std::move(self_); }

 private:
  Response* const response_;
  const std::string peer_;
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<UnaryCall> self_;
};

// ---- StreamCall ----

template <typename Response>
class StreamCall final : public Call,
                         public grpc::ServerWriteReactor<Response> {
 public:
  explicit StreamCall(std::string peer) : peer_(std::move(peer)) {}
  void Hold(std::shared_ptr<StreamCall> self) { self_ = std::move(self); }

  void Send(const google::protobuf::Message& message) override {
    const std::lock_guard lock(mutex_);
    if (cancelled_) return;
    queue_.emplace_back().CopyFrom(message);
    Advance();
  }
  void Finish(const Status& status) override {
    const std::lock_guard lock(mutex_);
    last_ = true;
    status_ = ToGrpc(status);
    Advance();
  }
  size_t unsent() const override {
    const std::lock_guard lock(mutex_);
    return queue_.size();
  }
  bool cancelled() const override { return cancelled_; }
  std::string peer() const override { return peer_; }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) {
      cancelled_ = true;
      queue_.clear();
    }
    Advance();
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { const auto last = std::move(self_); }

 private:
  // Requires mutex_.
  void Advance() {
    if (writing_ || finished_) return;
    if (cancelled_) queue_.clear();
    if (!queue_.empty()) {
      writing_ = true;
      this->StartWrite(&queue_.front());
    } else if (last_) {
      finished_ = true;
      grpc::ServerWriteReactor<Response>::Finish(status_);
    }
  }

  const std::string peer_;
  mutable std::mutex mutex_;
  std::deque<Response> queue_;
  bool writing_ = false;
  bool last_ = false;
  bool finished_ = false;
  grpc::Status status_;
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<StreamCall> self_;
};

// ---- The services ----

// Starts the method with this name in the table.
class Adapter {
 public:
  Adapter(const MethodTable& table, std::string prefix)
      : table_(table), prefix_(std::move(prefix)) {}

  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Unary(const grpc::CallbackServerContext& context,
                                  const char* name, const Request* request,
                                  Response* response) const {
    auto call =
        std::make_shared<UnaryCall<Response>>(response, PeerOfCall(context));
    call->Hold(call);
    auto* reactor = call.get();
    Start(name, *request, std::move(call));
    return reactor;
  }

  template <typename Response, typename Request>
  grpc::ServerWriteReactor<Response>* Streaming(
      const grpc::CallbackServerContext& context, const char* name,
      const Request* request) const {
    auto call = std::make_shared<StreamCall<Response>>(PeerOfCall(context));
    call->Hold(call);
    auto* reactor = call.get();
    Start(name, *request, std::move(call));
    return reactor;
  }

 private:
  template <typename Request>
  void Start(const char* name, const Request& request,
             std::shared_ptr<Call> call) const {
    const Method* method = table_.Find(prefix_ + name);
    assert(method != nullptr && "every method of the proto is in the table");
    table_.Start(*method, std::make_unique<Request>(request), std::move(call));
  }

  const MethodTable& table_;
  const std::string prefix_;
};

class PlannerService final : public v1::Planner::CallbackService {
 public:
  PlannerService(Services& services, const MethodTable& table)
      : uploads_(services), adapter_(table, "/reprise.v1.Planner/") {}

  grpc::ServerReadReactor<v1::GraphPart>* PutGraph(
      grpc::CallbackServerContext* context, v1::GraphRef* response) override {
    return uploads_.Begin(context, response);
  }
  grpc::ServerWriteReactor<v1::GraphPart>* GetGraph(
      grpc::CallbackServerContext* context,
      const v1::GraphRef* request) override {
    return adapter_.Streaming<v1::GraphPart>(*context, "GetGraph", request);
  }
  grpc::ServerWriteReactor<v1::PlanEvent>* Plan(
      grpc::CallbackServerContext* context,
      const v1::PlanRequest* request) override {
    return adapter_.Streaming<v1::PlanEvent>(*context, "Plan", request);
  }
  grpc::ServerWriteReactor<v1::TradeoffPoint>* Sweep(
      grpc::CallbackServerContext* context,
      const v1::SweepRequest* request) override {
    return adapter_.Streaming<v1::TradeoffPoint>(*context, "Sweep", request);
  }
  grpc::ServerUnaryReactor* FinishPlan(
      grpc::CallbackServerContext* context,
      const v1::FinishPlanRequest* request,
      v1::FinishPlanResponse* response) override {
    return adapter_.Unary(*context, "FinishPlan", request, response);
  }
  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context,
                                    const v1::GetPlanRequest* request,
                                    v1::Plan* response) override {
    return adapter_.Unary(*context, "GetPlan", request, response);
  }
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::Explanation* response) override {
    return adapter_.Unary(*context, "Explain", request, response);
  }
  grpc::ServerUnaryReactor* Verify(grpc::CallbackServerContext* context,
                                   const v1::VerifyRequest* request,
                                   v1::Verification* response) override {
    return adapter_.Unary(*context, "Verify", request, response);
  }

 private:
  GraphUploads uploads_;
  const Adapter adapter_;
};

class QueryService final : public v1::Query::CallbackService {
 public:
  explicit QueryService(const MethodTable& table)
      : adapter_(table, "/reprise.v1.Query/") {}

  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* context,
                                     const v1::ListRunsRequest* request,
                                     v1::ListRunsResponse* response) override {
    return adapter_.Unary(*context, "ListRuns", request, response);
  }
  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext* context,
                                   const v1::GetRunRequest* request,
                                   v1::Run* response) override {
    return adapter_.Unary(*context, "GetRun", request, response);
  }
  grpc::ServerWriteReactor<v1::RunEvent>* WatchRun(
      grpc::CallbackServerContext* context,
      const v1::WatchRunRequest* request) override {
    return adapter_.Streaming<v1::RunEvent>(*context, "WatchRun", request);
  }
  grpc::ServerUnaryReactor* GetTimeline(grpc::CallbackServerContext* context,
                                        const v1::TimelineRequest* request,
                                        v1::Timeline* response) override {
    return adapter_.Unary(*context, "GetTimeline", request, response);
  }
  grpc::ServerWriteReactor<v1::StepPart>* ReadStep(
      grpc::CallbackServerContext* context,
      const v1::ReadStepRequest* request) override {
    return adapter_.Streaming<v1::StepPart>(*context, "ReadStep", request);
  }
  grpc::ServerUnaryReactor* GetMemory(grpc::CallbackServerContext* context,
                                      const v1::GetMemoryRequest* request,
                                      v1::LiveMemory* response) override {
    return adapter_.Unary(*context, "GetMemory", request, response);
  }
  grpc::ServerUnaryReactor* GetSegments(grpc::CallbackServerContext* context,
                                        const v1::GetSegmentsRequest* request,
                                        v1::Segments* response) override {
    return adapter_.Unary(*context, "GetSegments", request, response);
  }
  grpc::ServerUnaryReactor* GetSteps(grpc::CallbackServerContext* context,
                                     const v1::GetStepsRequest* request,
                                     v1::StepBuckets* response) override {
    return adapter_.Unary(*context, "GetSteps", request, response);
  }
  grpc::ServerUnaryReactor* GetAddresses(grpc::CallbackServerContext* context,
                                         const v1::GetAddressesRequest* request,
                                         v1::Addresses* response) override {
    return adapter_.Unary(*context, "GetAddresses", request, response);
  }
  grpc::ServerUnaryReactor* GetKernels(grpc::CallbackServerContext* context,
                                       const v1::GetKernelsRequest* request,
                                       v1::Kernels* response) override {
    return adapter_.Unary(*context, "GetKernels", request, response);
  }
  grpc::ServerUnaryReactor* Compare(grpc::CallbackServerContext* context,
                                    const v1::CompareRequest* request,
                                    v1::Comparison* response) override {
    return adapter_.Unary(*context, "Compare", request, response);
  }
  grpc::ServerUnaryReactor* GetMoments(
      grpc::CallbackServerContext* context,
      const v1::GetMomentsRequest* request,
      v1::GetMomentsResponse* response) override {
    return adapter_.Unary(*context, "GetMoments", request, response);
  }
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::StatusRequest* request,
                                      v1::ServerStatus* response) override {
    return adapter_.Unary(*context, "GetStatus", request, response);
  }

 private:
  const Adapter adapter_;
};

class ControlService final : public v1::Control::CallbackService {
 public:
  explicit ControlService(const MethodTable& table)
      : adapter_(table, "/reprise.v1.Control/") {}

  grpc::ServerUnaryReactor* StartWindow(grpc::CallbackServerContext* context,
                                        const v1::StartWindowRequest* request,
                                        v1::WindowStatus* response) override {
    return adapter_.Unary(*context, "StartWindow", request, response);
  }
  grpc::ServerWriteReactor<v1::PlanEvent>* ApplyBudget(
      grpc::CallbackServerContext* context,
      const v1::ApplyBudgetRequest* request) override {
    return adapter_.Streaming<v1::PlanEvent>(*context, "ApplyBudget", request);
  }
  grpc::ServerUnaryReactor* ReportEnd(
      grpc::CallbackServerContext* context, const v1::ReportEndRequest* request,
      v1::ReportEndResponse* response) override {
    return adapter_.Unary(*context, "ReportEnd", request, response);
  }

 private:
  const Adapter adapter_;
};

class ForwardService final : public v1::Forward::CallbackService {
 public:
  explicit ForwardService(const MethodTable& table)
      : adapter_(table, "/reprise.v1.Forward/") {}

  grpc::ServerUnaryReactor* PutPlan(grpc::CallbackServerContext* context,
                                    const v1::PutPlanRequest* request,
                                    v1::PutPlanResponse* response) override {
    return adapter_.Unary(*context, "PutPlan", request, response);
  }
  grpc::ServerUnaryReactor* SetRunGraph(
      grpc::CallbackServerContext* context,
      const v1::SetRunGraphRequest* request,
      v1::SetRunGraphResponse* response) override {
    return adapter_.Unary(*context, "SetRunGraph", request, response);
  }

 private:
  const Adapter adapter_;
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(const MethodTable& table)
      : adapter_(table, "/reprise.v1.Admin/") {}

  grpc::ServerUnaryReactor* RemoveRuns(
      grpc::CallbackServerContext* context,
      const v1::RemoveRunsRequest* request,
      v1::RemoveRunsResponse* response) override {
    return adapter_.Unary(*context, "RemoveRuns", request, response);
  }
  grpc::ServerWriteReactor<v1::BackupPart>* Backup(
      grpc::CallbackServerContext* context,
      const v1::BackupRequest* request) override {
    return adapter_.Streaming<v1::BackupPart>(*context, "Backup", request);
  }
  grpc::ServerUnaryReactor* ReadAudit(
      grpc::CallbackServerContext* context, const v1::ReadAuditRequest* request,
      v1::ReadAuditResponse* response) override {
    return adapter_.Unary(*context, "ReadAudit", request, response);
  }

 private:
  const Adapter adapter_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> MakeGrpcServices(
    Services& services, const MethodTable& table) {
  std::vector<std::unique_ptr<grpc::Service>> made;
  made.push_back(std::make_unique<PlannerService>(services, table));
  made.push_back(std::make_unique<QueryService>(table));
  made.push_back(std::make_unique<ControlService>(table));
  made.push_back(std::make_unique<ForwardService>(table));
  made.push_back(std::make_unique<AdminService>(table));
  return made;
}

}  // namespace reprise::server
