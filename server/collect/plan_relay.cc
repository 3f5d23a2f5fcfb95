// SPDX-License-Identifier: Apache-2.0
#include "server/collect/plan_relay.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/capabilities.h"
#include "formats/convert/digest.h"
#include "formats/convert/json_fields.h"
#include "profiler/include/reprise_wire.h"
#include "server/core/caller.h"

namespace reprise::server {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// One rank of each job asks, and a few jobs may share a machine.
constexpr int kThreads = 3;
constexpr size_t kPartBytes = 1 << 20;
constexpr seconds kPutDeadline{30};
constexpr seconds kPlanDeadline{300};
constexpr milliseconds kFirstCallPause{200};
constexpr milliseconds kLongestCallPause{5000};
// A JSON object takes 3 bytes as text and up to 200 as a message, so a small
// file could need much memory. Real graphs have fewer than 100,000 objects.
constexpr ptrdiff_t kMaxJsonObjects = 2'000'000;

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return {static_cast<Code>(status.error_code()), status.error_message()};
}

bool IsUnreachable(Code code) {
  return code == Code::kUnavailable || code == Code::kDeadlineExceeded;
}

uint64_t NotNegative(int64_t value) {
  return value < 0 ? 0 : static_cast<uint64_t>(value);
}

}  // namespace

StatusOr<EncodedPlan> EncodePlan(const v1::Plan& plan) {
  EncodedPlan encoded;
  encoded.peak_bytes = NotNegative(plan.peak_bytes());
  encoded.time_ns = NotNegative(plan.time_ns());
  ASSIGN_OR_RETURN(encoded.plan_id, formats::ParseHexId(plan.plan_id()));
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto printed =
      google::protobuf::util::MessageToJsonString(plan, &encoded.json, options);
  if (!printed.ok()) {
    return Internal(StrCat("plan ", plan.plan_id(),
                           ": cannot be printed: ", printed.ToString()));
  }
  if (encoded.json.size() > REPRISE_MAX_PLAN_BYTES) {
    return Internal(StrCat("plan ", plan.plan_id(), ": has ",
                           encoded.json.size(), " bytes, an agent takes ",
                           REPRISE_MAX_PLAN_BYTES));
  }
  return encoded;
}

class PlanRelay::CancellableCall {
 public:
  CancellableCall(PlanRelay& relay, Job& job, seconds deadline)
      : relay_(relay), job_(job) {
    context_.AddMetadata(kJobMetadata, job.process);
    context_.set_deadline(std::chrono::system_clock::now() + deadline);
    const std::lock_guard lock(relay_.mutex_);
    job_.call = &context_;
    if (relay_.stop_ || job_.forgotten) context_.TryCancel();
  }
  ~CancellableCall() {
    const std::lock_guard lock(relay_.mutex_);
    job_.call = nullptr;
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  PlanRelay& relay_;
  Job& job_;
  grpc::ClientContext context_;
};

PlanRelay::PlanRelay(std::shared_ptr<grpc::Channel> channel,
                     std::function<void(PlanAnswer)> answered)
    : stub_(v1::Planner::NewStub(std::move(channel))),
      answered_(std::move(answered)) {
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Work(); });
}

PlanRelay::~PlanRelay() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (Job& job : jobs_) {
      if (job.call != nullptr) job.call->TryCancel();
    }
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PlanRelay::Submit(int64_t session, std::string run_id, std::string process,
                       PlanWish wish, Mapping json,
                       std::shared_ptr<const OpMeasurement> measured) {
  {
    const std::lock_guard lock(mutex_);
    Job& job = jobs_.emplace_back();
    job.session = session;
    job.run_id = std::move(run_id);
    job.process = std::move(process);
    job.wish = std::move(wish);
    job.json = std::move(json);
    job.measured = std::move(measured);
  }
  wake_.notify_one();
}

void PlanRelay::Forget(int64_t session) {
  const std::lock_guard lock(mutex_);
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    if (job->session != session) {
      ++job;
    } else if (job->running) {
      job->forgotten = true;
      if (job->call != nullptr) job->call->TryCancel();
      ++job;
    } else {
      job = jobs_.erase(job);
    }
  }
}

void PlanRelay::Work() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    auto next = jobs_.end();
    for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
      if (job->running) continue;
      if (next == jobs_.end() || job->not_before < next->not_before) {
        next = job;
      }
    }
    if (next == jobs_.end()) {
      wake_.wait(lock);
      continue;
    }
    if (next->not_before > Clock::now()) {
      const auto until = next->not_before;  // the job may be erased meanwhile
      wake_.wait_until(lock, until);
      continue;
    }
    next->running = true;
    lock.unlock();
    PlanAnswer answer = Ask(*next);
    lock.lock();
    next->running = false;
    const bool again = answer.status == REPRISE_PLAN_UNREACHABLE;
    const bool wanted = !next->forgotten && !stop_;
    const bool first = ++next->attempts == 1;
    if (again && wanted) {
      const int doublings = std::min(next->attempts - 1, 5);
      next->not_before = Clock::now() + std::min<milliseconds>(
                                            kLongestCallPause,
                                            kFirstCallPause * (1 << doublings));
    } else {
      jobs_.erase(next);
    }
    if (!wanted || (again && !first)) continue;
    lock.unlock();
    answered_(std::move(answer));
    lock.lock();
  }
}

PlanAnswer PlanRelay::Ask(Job& job) {
  PlanAnswer answer;
  answer.session = job.session;
  answer.wish = job.wish;
  const auto failed = [&answer](const Status& status) {
    const bool unreachable = IsUnreachable(status.code());
    answer.status =
        unreachable ? REPRISE_PLAN_UNREACHABLE : REPRISE_PLAN_NOT_PLANNED;
    answer.sentence = unreachable
                          ? StrCat("server not reachable: ", status.message(),
                                   "; trying again")
                          : status.message();
    return answer;
  };

  v1::PlanRequest request;
  auto capabilities = formats::ParseCapabilities(job.wish.capabilities);
  if (!capabilities.ok()) return failed(capabilities.status());
  *request.mutable_capabilities() = *std::move(capabilities);
  {
    auto graph = ParseGraph(job);
    if (!graph.ok()) return failed(graph.status());
    auto graph_id = PutGraph(job, *graph);
    if (!graph_id.ok()) return failed(graph_id.status());
    request.set_graph_id(*std::move(graph_id));
  }
  // The job runs without a budget: its graph is only for the page.
  if (job.wish.budget.empty()) {
    answer.status = REPRISE_PLAN_NOT_PLANNED;
    answer.sentence = "no budget was given";
    return answer;
  }
  request.set_budget(job.wish.budget);
  request.set_run_id(job.run_id);
  request.set_device_bytes(static_cast<int64_t>(job.wish.device_bytes));
  request.set_device_free_bytes(
      static_cast<int64_t>(job.wish.device_free_bytes));
  request.set_reserve_bytes(static_cast<int64_t>(job.wish.reserve_bytes));
  if (job.wish.replaces != 0) {
    request.set_replaces(formats::HexId(job.wish.replaces));
    request.set_more_bytes(static_cast<int64_t>(job.wish.more_bytes));
  }
  auto plan = Plan(job, request);
  if (!plan.ok()) return failed(plan.status());
  if (!plan->feasible()) {
    answer.status = REPRISE_PLAN_INFEASIBLE;
    answer.smallest_budget =
        NotNegative(plan->infeasible().smallest_budget_bytes());
    answer.sentence = plan->sentence();
    return answer;
  }
  auto encoded = EncodePlan(*plan);
  if (!encoded.ok()) return failed(encoded.status());
  answer.plan = std::make_shared<const EncodedPlan>(*std::move(encoded));
  return answer;
}

StatusOr<v1::StepGraph> PlanRelay::ParseGraph(const Job& job) const {
  const std::string_view json = job.json.text();
  const uint64_t id = formats::IdOf(json);
  if (id != job.wish.graph_id) {
    return InvalidArgument(StrCat("graph ", formats::HexId(job.wish.graph_id),
                                  ": its content has the id ",
                                  formats::HexId(id)));
  }
  if (std::count(json.begin(), json.end(), '{') > kMaxJsonObjects) {
    return ResourceExhausted(StrCat("graph ", formats::HexId(id),
                                    ": has more than ", kMaxJsonObjects,
                                    " objects"));
  }
  v1::StepGraph graph;
  const Status read = formats::ReadProto3(json, graph);
  if (!read.ok()) {
    return InvalidArgument(
        StrCat("graph ", formats::HexId(id),
               ": is no step graph in JSON: ", read.message()));
  }
  if (graph.static_bytes() == 0) {
    graph.set_static_bytes(static_cast<int64_t>(job.wish.static_bytes));
  }
  if (job.measured) ApplyMeasurement(*job.measured, graph);
  return graph;
}

StatusOr<std::string> PlanRelay::PutGraph(Job& job,
                                          const v1::StepGraph& graph) {
  const std::string bytes = graph.SerializeAsString();
  v1::GraphRef reference;
  CancellableCall call(*this, job, kPutDeadline);
  const auto writer = stub_->PutGraph(call.context(), &reference);
  v1::GraphPart part;
  part.set_run_id(job.run_id);
  part.set_graph_id(formats::HexId(job.wish.graph_id));
  size_t sent = 0;
  do {
    part.set_data(bytes.substr(sent, kPartBytes));
    sent += part.data().size();
    // False means that the server has ended the call; Finish returns the
    // reason.
    if (!writer->Write(part)) break;
    part.Clear();
  } while (sent < bytes.size());
  writer->WritesDone();
  const Status put = FromGrpc(writer->Finish());
  // The graph was submitted before, with other measurements. The stored one is
  // the same graph, since its id was verified, and one set of times is enough.
  if (put.code() == Code::kAlreadyExists && job.measured) {
    return formats::HexId(job.wish.graph_id);
  }
  RETURN_IF_ERROR(put);
  return reference.graph_id();
}

StatusOr<v1::Plan> PlanRelay::Plan(Job& job, const v1::PlanRequest& request) {
  CancellableCall call(*this, job, kPlanDeadline);
  const auto reader = stub_->Plan(call.context(), request);
  v1::Plan plan;
  bool found = false;
  for (v1::PlanEvent event; reader->Read(&event);) {
    if (!event.has_plan()) continue;
    plan = std::move(*event.mutable_plan());
    found = true;
  }
  RETURN_IF_ERROR(FromGrpc(reader->Finish()));
  if (!found) return Internal("server: ended Plan without a plan");
  return plan;
}

}  // namespace reprise::server
