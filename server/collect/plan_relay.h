// SPDX-License-Identifier: Apache-2.0
//
// Relays graphs from agents to the Planner service, and plans back.
//
//   GRAPH ─▶ StepGraph ─▶ PutGraph in parts ─▶ Plan ─▶ PLAN or PLAN_STATUS
//
// Runs on threads of its own, so that a planner that takes seconds never delays
// a ring. An unreachable server is reported once and retried until it answers
// or the session ends.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "reprise/v1/graph.pb.h"
#include "reprise/v1/planner.grpc.pb.h"
#include "server/collect/memfd.h"
#include "server/collect/op_join.h"

namespace reprise::server {

// A request for a plan. Equal requests have equal answers.
struct PlanWish {
  uint64_t graph_id = 0;
  std::string budget;
  std::string capabilities;
  uint64_t static_bytes = 0;
  uint64_t device_bytes = 0;
  uint64_t device_free_bytes = 0;
  uint64_t reserve_bytes = 0;
  uint64_t request_id = 0;  // 0: the agent gave none
  // The plan that needs so many bytes more than it says; 0: none.
  uint64_t replaces = 0;
  uint64_t more_bytes = 0;

  // The id under which the agent looks for the answer.
  uint64_t AnswerId() const { return request_id != 0 ? request_id : graph_id; }
  friend bool operator==(const PlanWish&, const PlanWish&) = default;
};

// A plan in the form that an agent receives.
struct EncodedPlan {
  uint64_t plan_id = 0;
  uint64_t peak_bytes = 0;
  uint64_t time_ns = 0;
  std::string json;  // proto3 JSON with original field names
};

// INTERNAL: the plan's id is malformed, or the plan is larger than an agent
// accepts.
StatusOr<EncodedPlan> EncodePlan(const v1::Plan& plan);

struct PlanAnswer {
  int64_t session = 0;
  PlanWish wish;
  // Unsolicited: the server now has another plan for wish.graph_id, which
  // replaces the plan `replaces` (0: whichever the graph has).
  bool replan = false;
  uint64_t replaces = 0;
  // 0: `plan` is set; otherwise a REPRISE_PLAN_* with a sentence.
  uint32_t status = 0;
  std::string sentence;
  uint64_t smallest_budget = 0;  // INFEASIBLE only
  std::shared_ptr<const EncodedPlan> plan;
};

class PlanRelay {
 public:
  // `answered` is called on the relay's threads.
  PlanRelay(std::shared_ptr<grpc::Channel> channel,
            std::function<void(PlanAnswer)> answered);
  ~PlanRelay();  // cancels calls in progress

  // Queues a request. `json` is the graph as MapSealed returned it; `measured`
  // is what was measured about its ops, or null; `process` is who asks, as
  // "uid 1000, pid 4242".
  void Submit(int64_t session, std::string run_id, std::string process,
              PlanWish wish, Mapping json,
              std::shared_ptr<const OpMeasurement> measured = nullptr);

  // The session has ended: cancels its requests.
  void Forget(int64_t session);

 private:
  using Clock = std::chrono::steady_clock;

  struct Job {
    int64_t session = 0;
    std::string run_id;
    std::string process;
    PlanWish wish;
    Mapping json;
    std::shared_ptr<const OpMeasurement> measured;
    Clock::time_point not_before;
    int attempts = 0;
    bool running = false;
    bool forgotten = false;
    grpc::ClientContext* call = nullptr;  // set while a call can be cancelled
  };

  void Work();
  PlanAnswer Ask(Job& job);
  StatusOr<v1::StepGraph> ParseGraph(const Job& job) const;
  StatusOr<std::string> PutGraph(Job& job, const v1::StepGraph& graph);
  StatusOr<v1::Plan> Plan(Job& job, const v1::PlanRequest& request);

  // Makes `context` cancellable as the job's call during its lifetime.
  class CancellableCall;

  const std::unique_ptr<v1::Planner::Stub> stub_;
  const std::function<void(PlanAnswer)> answered_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Job> jobs_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// Adds what was measured on the device to the step graph that was captured at
// the same time.
//
//   time_ns          sum of the kernels of the op's `agent_ops`
//   workspace_bytes  what the op allocated beyond its outputs, if that is more
//                    than the job itself measured
//   launch_gap_ns    first to last kernel, less the time in which one ran
//   reprise.step_begin   the rest of the measured step, so that the times of
//                        the ops still add up to it
//
// Times are replaced either for all ops or for none: if an op of the graph, or
// a record since the first of them, is missing, or no kernel was seen, the
// host's times stay and `timing` says why. So they do if more than one op in
// twenty has kernels that cannot be its own: that begin before the op, or end
// long after all that could have been queued. Then the tracer's clock was
// wrong, and with it perhaps how long they took.

// O(ops + kernels log kernels).
void ApplyMeasurement(const OpMeasurement& measured, v1::StepGraph& graph);

}  // namespace reprise::server
