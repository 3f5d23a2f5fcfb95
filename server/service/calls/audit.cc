// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/audit.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "reprise/v1/planner.pb.h"
#include "reprise/v1/query.pb.h"
#include "server/core/log.h"
#include "server/store/audit_rows.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

using google::protobuf::Message;

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

// Returns what a call would leave in the audit; nothing if it is not kept.
std::optional<v1::AuditEntry> EntryOf(std::string_view path,
                                      const Message& message) {
  if (path == "/reprise.v1.Planner/Plan") {
    const auto& request = static_cast<const v1::PlanRequest&>(message);
    return NewEntry({}, request.replaces().empty() ? "plan" : "replan",
                    request.run_id(), StrCat("graph ", request.graph_id()));
  }
  if (path == "/reprise.v1.Planner/Sweep") {
    const auto& request = static_cast<const v1::SweepRequest&>(message);
    return NewEntry({}, "sweep", "", StrCat("graph ", request.graph_id()));
  }
  if (path == "/reprise.v1.Planner/FinishPlan") {
    const auto& request = static_cast<const v1::FinishPlanRequest&>(message);
    return NewEntry({}, "finish-plan", "",
                    StrCat("request ", request.request_id()));
  }
  if (path == "/reprise.v1.Control/StartWindow") {
    const auto& request = static_cast<const v1::StartWindowRequest&>(message);
    return NewEntry({}, "window", request.run_id(),
                    StrCat(request.steps(), " steps"));
  }
  if (path == "/reprise.v1.Control/ApplyBudget") {
    const auto& request = static_cast<const v1::ApplyBudgetRequest&>(message);
    return NewEntry({}, "apply-budget", request.run_id(), request.budget());
  }
  if (path == "/reprise.v1.Control/ReportEnd") {
    const auto& request = static_cast<const v1::ReportEndRequest&>(message);
    return NewEntry({}, "end", request.run_id(),
                    StrCat("exit code ", request.end().exit_code()));
  }
  if (path == "/reprise.v1.Admin/RemoveRuns") {
    const auto& request = static_cast<const v1::RemoveRunsRequest&>(message);
    if (request.dry_run()) return std::nullopt;
    return NewEntry({}, "remove", "", SubjectOf(request));
  }
  if (path == "/reprise.v1.Admin/Backup") {
    return NewEntry({}, "backup", "", "the whole store");
  }
  return std::nullopt;
}

class AuditedCall final : public Call {
 public:
  AuditedCall(Audit& audit, v1::AuditEntry entry, std::shared_ptr<Call> call)
      : audit_(audit), entry_(std::move(entry)), call_(std::move(call)) {}

  void Send(const Message& message) override {
    Note(message);
    call_->Send(message);
  }
  void Finish(const Status& status) override {
    entry_.set_outcome(std::string(OutcomeOf(status)));
    if (!status.ok()) entry_.set_detail(status.message());
    // To a user, only its own runs exist: what it asked for is one of them, with
    // its id (rules.h), or none.
    if (removed_.empty()) audit_.Add(entry_, !access().SeesAll());
    // What was removed before an error is gone all the same.
    for (const std::string& run_id : removed_) {
      v1::AuditEntry one = entry_;
      one.set_run_id(run_id);
      audit_.Add(std::move(one), /*is_id=*/true);
    }
    call_->Finish(status);
  }
  size_t unsent() const override { return call_->unsent(); }
  bool cancelled() const override { return call_->cancelled(); }
  std::string peer() const override { return call_->peer(); }
  Access access() const override { return call_->access(); }

 private:
  void Note(const Message& message) {
    if (const auto* event = dynamic_cast<const v1::PlanEvent*>(&message)) {
      if (!event->has_plan()) return;
      const v1::Plan& plan = event->plan();
      entry_.set_subject(plan.feasible() ? StrCat("plan ", plan.plan_id())
                                         : entry_.subject());
      entry_.set_detail(plan.sentence());
    } else if (const auto* removed =
                   dynamic_cast<const v1::RemoveRunsResponse*>(&message)) {
      for (const v1::Run& run : removed->runs()) {
        removed_.push_back(run.run_id());
      }
    }
  }

  Audit& audit_;
  v1::AuditEntry entry_;
  const std::shared_ptr<Call> call_;
  std::vector<std::string> removed_;
};

}  // namespace

std::string_view OutcomeOf(const Status& status) {
  return CodeName(status.code());
}

void Audit::Add(v1::AuditEntry entry, bool is_id) {
  if (entry.who().empty()) entry.set_who("server");
  if (entry.outcome().empty()) entry.set_outcome("ok");
  const Status status = store_.Write([&](Database& db) -> Status {
    if (!entry.run_id().empty() && !is_id) {
      const StatusOr<std::string> found = ResolveRunId(db, entry.run_id());
      if (found.ok()) entry.set_run_id(*found);
    }
    return InsertAudit(db, entry);
  });
  if (status.ok()) return;
  LogWarning("audit_failed",
             StrCat("not kept in the audit: ", entry.who(), " ", entry.action(),
                    " ", entry.run_id(), ": ", status.message()),
             {{"who", entry.who()},
              {"action", entry.action()},
              {"run_id", entry.run_id()}});
}

std::shared_ptr<Call> Audit::Wrap(std::string_view path, const Message& request,
                                  std::shared_ptr<Call> call) {
  std::optional<v1::AuditEntry> entry = EntryOf(path, request);
  if (!entry) return call;
  // The connection may be closed by the time the call ends.
  const Caller caller = Identify(call->peer(), call->access());
  entry->set_run_id(std::string(IdIn(entry->run_id())));
  entry->set_who(caller.who);
  entry->set_peer(caller.peer);
  return std::make_shared<AuditedCall>(*this, *std::move(entry),
                                       std::move(call));
}

}  // namespace reprise::server
