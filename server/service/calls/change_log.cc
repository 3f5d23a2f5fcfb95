// SPDX-License-Identifier: Apache-2.0
//
// Logs who did what over the method table: plans, sweeps, windows, removed runs.
// Sessions and applied plans are logged by the committer, step graphs and imports
// by those who receive them.
//
//   Plan, Sweep, ... ─▶ LoggedCall ─▶ handler
//                          │ Finish: one line with the outcome
//                          ▼
//                         log
//
// Calls that only read are not logged.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "reprise/v1/planner.pb.h"
#include "reprise/v1/query.pb.h"
#include "server/core/change.h"
#include "server/service/calls/handlers.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

using google::protobuf::Message;

template <typename Type>
const Type* Is(const Message& message) {
  return google::protobuf::DynamicCastToGenerated<Type>(&message);
}

std::string SubjectOf(const v1::RemoveRunsRequest& request) {
  if (request.run_id_size() > 0) return "named runs";
  std::string rule;
  if (request.ended_before_ns() != 0) {
    rule = StrCat("runs that ended before ",
                  request.ended_before_ns() / 1'000'000'000);
  }
  if (request.has_keep_newest()) {
    rule += StrCat(rule.empty() ? "" : ", ", "all but the newest ",
                   request.keep_newest());
  }
  return rule;
}

// Returns what a request would change; nothing if it only reads.
std::optional<Change> ChangeOf(const Message& message) {
  if (const auto* plan = Is<v1::PlanRequest>(message)) {
    return Change{.action = plan->replaces().empty() ? "plan" : "replan",
                  .run_id = plan->run_id(),
                  .subject = StrCat("graph ", plan->graph_id())};
  }
  if (const auto* sweep = Is<v1::SweepRequest>(message)) {
    return Change{.action = "sweep",
                  .subject = StrCat("graph ", sweep->graph_id())};
  }
  if (const auto* finish = Is<v1::FinishPlanRequest>(message)) {
    return Change{.action = "finish-plan",
                  .subject = StrCat("request ", finish->request_id())};
  }
  if (const auto* window = Is<v1::StartWindowRequest>(message)) {
    return Change{.action = "window",
                  .run_id = window->run_id(),
                  .subject = StrCat(window->steps(), " steps")};
  }
  if (const auto* apply = Is<v1::ApplyBudgetRequest>(message)) {
    return Change{.action = "apply-budget",
                  .run_id = apply->run_id(),
                  .subject = apply->budget()};
  }
  if (const auto* end = Is<v1::ReportEndRequest>(message)) {
    return Change{.action = "end",
                  .run_id = end->run_id(),
                  .subject = StrCat("exit code ", end->end().exit_code())};
  }
  const auto* remove = Is<v1::RemoveRunsRequest>(message);
  if (remove == nullptr || remove->dry_run()) return std::nullopt;
  return Change{.action = "remove", .subject = SubjectOf(*remove)};
}

class LoggedCall final : public CallAround {
 public:
  LoggedCall(Store& store, Change change, std::shared_ptr<Call> call)
      : CallAround(std::move(call)),
        store_(store),
        change_(std::move(change)) {}

  void Send(const Message& message) override {
    if (const auto* event = Is<v1::PlanEvent>(message)) {
      if (event->has_plan()) NotePlan(event->plan());
    } else if (const auto* removed = Is<v1::RemoveRunsResponse>(message)) {
      for (const v1::Run& run : removed->runs()) {
        removed_.push_back(run.run_id());
      }
    }
    CallAround::Send(message);
  }
  void Finish(const Status& status) override {
    change_.End(status);
    // A beginning or "latest" stands for the run of this moment. To a user, only
    // its own runs exist: what it asked for is one of them, with its id
    // (rules.h), or none.
    if (!change_.run_id.empty() && access().SeesAll()) {
      const auto found = store_.Get(ResolveRunId, change_.run_id);
      if (found.ok()) change_.run_id = *found;
    }
    if (removed_.empty()) LogChange(change_);
    // What was removed before an error is gone all the same.
    for (const std::string& run_id : removed_) {
      change_.run_id = run_id;
      LogChange(change_);
    }
    CallAround::Finish(status);
  }

 private:
  void NotePlan(const v1::Plan& plan) {
    if (plan.feasible()) change_.subject = StrCat("plan ", plan.plan_id());
    change_.detail = plan.sentence();
  }

  Store& store_;
  Change change_;
  std::vector<std::string> removed_;
};

}  // namespace

CallWrapper MakeChangeLog(Services& services) {
  return [&services](const Message& request, std::shared_ptr<Call> call) {
    std::optional<Change> change = ChangeOf(request);
    if (!change) return call;
    // The connection may be closed by the time the call ends.
    change->caller = services.identify(call->peer(), call->access());
    change->run_id = IdIn(change->run_id);
    return std::shared_ptr<Call>(std::make_shared<LoggedCall>(
        services.store, *std::move(change), std::move(call)));
  };
}

}  // namespace reprise::server
