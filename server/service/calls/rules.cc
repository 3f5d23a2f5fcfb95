// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/rules.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/str_cat.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"
#include "server/store/session_rows.h"

namespace reprise::server {

namespace {

using google::protobuf::Message;

constexpr std::string_view kPackage = "/reprise.v1.";

// Narrows a request of a user or sender; runs within Store::Write where the rule
// claims a run, else within Store::Read.
using Narrow = Status(Database& db, const std::string& user, Message& message);

Status Nothing(Database& /*db*/, const std::string& /*user*/,
               Message& /*message*/) {
  return OkStatus();
}

template <typename Request>
Status OwnRun(Database& db, const std::string& user, Message& message) {
  auto& request = static_cast<Request&>(message);
  ASSIGN_OR_RETURN(const std::string run_id,
                   ResolveRunOf(db, request.run_id(), user));
  request.set_run_id(OwnersRun(run_id, user));
  return OkStatus();
}

template <typename Request>
Status OwnGraph(Database& db, const std::string& user, Message& message) {
  return FindGraphOf(db, static_cast<Request&>(message).graph_id(), user);
}

template <typename Request>
Status OwnPlan(Database& db, const std::string& user, Message& message) {
  return FindPlanOf(db, static_cast<Request&>(message).plan_id(), user);
}

template <typename Request>
Status OwnList(Database& /*db*/, const std::string& user, Message& message) {
  static_cast<Request&>(message).set_owner(user);
  return OkStatus();
}

template <typename Request>
Status OwnCall(Database& /*db*/, const std::string& user, Message& message) {
  auto& request = static_cast<Request&>(message);
  request.set_request_id(RequestIdOf(user, request.request_id()));
  return OkStatus();
}

Status OwnSweep(Database& db, const std::string& user, Message& message) {
  RETURN_IF_ERROR(OwnCall<v1::SweepRequest>(db, user, message));
  return OwnGraph<v1::SweepRequest>(db, user, message);
}

Status OwnPlanning(Database& db, const std::string& user, Message& message) {
  auto& request = static_cast<v1::PlanRequest&>(message);
  RETURN_IF_ERROR(OwnCall<v1::PlanRequest>(db, user, message));
  if (!request.run_id().empty()) {
    // The planner takes ids alone.
    ASSIGN_OR_RETURN(*request.mutable_run_id(),
                     ResolveRunOf(db, request.run_id(), user));
  }
  // Its graph and budget are those of the replaced plan.
  return request.replaces().empty() ? FindGraphOf(db, request.graph_id(), user)
                                    : FindPlanOf(db, request.replaces(), user);
}

// What is forwarded may come before the session of its run.
template <typename Request>
Status ClaimedRun(Database& db, const std::string& user, Message& message) {
  const std::string& run_id = static_cast<Request&>(message).run_id();
  RETURN_IF_ERROR(CheckIdentifier("run_id", run_id));
  return ClaimRun(db, run_id,
                  {.who = user, .peer = "", .access = {Role::kUser, user}},
                  RealtimeNs());
}

Status ForwardedPlan(Database& db, const std::string& user, Message& message) {
  const auto& request = static_cast<v1::PutPlanRequest&>(message);
  RETURN_IF_ERROR(FindGraphOf(db, request.plan().graph_id(), user));
  return ClaimedRun<v1::PutPlanRequest>(db, user, message);
}

Status ForwardedGraph(Database& db, const std::string& user, Message& message) {
  RETURN_IF_ERROR(OwnGraph<v1::SetRunGraphRequest>(db, user, message));
  return ClaimedRun<v1::SetRunGraphRequest>(db, user, message);
}

Status OwnSides(Database& db, const std::string& user, Message& message) {
  auto& request = static_cast<v1::CompareRequest&>(message);
  for (std::string* side : {request.mutable_a(), request.mutable_b()}) {
    const StatusOr<std::string> run = ResolveRunOf(db, *side, user);
    const bool is_plan = run.status().code() == Code::kNotFound &&
                         FindPlanOf(db, *side, user).ok();
    if (!is_plan) {
      RETURN_IF_ERROR(run.status());
    }
    *side = OwnersRun(is_plan ? *side : *run, user);
  }
  return OkStatus();
}

Status OwnRuns(Database& db, const std::string& user, Message& message) {
  auto& request = static_cast<v1::RemoveRunsRequest&>(message);
  for (std::string& run_id : *request.mutable_run_id()) {
    ASSIGN_OR_RETURN(const std::string own, ResolveRunOf(db, run_id, user));
    run_id = OwnersRun(own, user);
  }
  return OwnList<v1::RemoveRunsRequest>(db, user, message);
}

Status Brief(Database& /*db*/, const std::string& /*user*/, Message& message) {
  static_cast<v1::StatusRequest&>(message).set_brief(true);
  return OkStatus();
}

struct Rule {
  std::string_view name;
  Needs needs = Needs::kAdmin;
  Narrow* narrow = &Nothing;
  bool claims = false;
};

// tests/structure/test_rules.py holds that every RPC has one.
constexpr Rule kRules[] = {
    // The first two are narrowed where they are received: IngestCall,
    // ReceiveGraph.
    {"Ingest/Stream", Needs::kSending},
    {"Planner/PutGraph", Needs::kSending},
    {"Planner/GetGraph", Needs::kReading, &OwnGraph<v1::GraphRef>},
    {"Planner/Plan", Needs::kSending, &OwnPlanning},
    {"Planner/FinishPlan", Needs::kSending, &OwnCall<v1::FinishPlanRequest>},
    {"Planner/Sweep", Needs::kReading, &OwnSweep},
    {"Planner/GetPlan", Needs::kReading, &OwnPlan<v1::GetPlanRequest>},
    {"Planner/Explain", Needs::kReading, &OwnPlan<v1::ExplainRequest>},
    {"Planner/Verify", Needs::kReading, &OwnPlan<v1::VerifyRequest>},
    {"Forward/PutPlan", Needs::kSending, &ForwardedPlan, /*claims=*/true},
    {"Forward/SetRunGraph", Needs::kSending, &ForwardedGraph, /*claims=*/true},
    {"Query/ListRuns", Needs::kReading, &OwnList<v1::ListRunsRequest>},
    {"Query/GetRun", Needs::kReading, &OwnRun<v1::GetRunRequest>},
    {"Query/WatchRun", Needs::kReading, &OwnRun<v1::WatchRunRequest>},
    {"Query/GetTimeline", Needs::kReading, &OwnRun<v1::TimelineRequest>},
    {"Query/ReadStep", Needs::kReading, &OwnRun<v1::ReadStepRequest>},
    {"Query/GetMoments", Needs::kReading, &OwnRun<v1::GetMomentsRequest>},
    {"Query/GetMemory", Needs::kReading, &OwnRun<v1::GetMemoryRequest>},
    {"Query/GetSteps", Needs::kReading, &OwnRun<v1::GetStepsRequest>},
    {"Query/Compare", Needs::kReading, &OwnSides},
    {"Query/GetStatus", Needs::kStatus, &Brief},
    {"Control/StartWindow", Needs::kChanging, &OwnRun<v1::StartWindowRequest>},
    {"Control/ApplyBudget", Needs::kChanging, &OwnRun<v1::ApplyBudgetRequest>},
    {"Control/ReportEnd", Needs::kSending, &OwnRun<v1::ReportEndRequest>},
    {"Admin/RemoveRuns", Needs::kChanging, &OwnRuns},
};

Rule RuleOf(std::string_view path) {
  const std::string_view name = path.substr(kPackage.size());
  const auto* found =
      std::find_if(std::begin(kRules), std::end(kRules),
                   [&](const Rule& rule) { return rule.name == name; });
  return found == std::end(kRules) ? Rule{.name = name} : *found;
}

}  // namespace

Status CheckMayCall(const Access& access, std::string_view path) {
  const Rule rule = RuleOf(path);
  return CheckRole(access, rule.needs, rule.name);
}

CallGate MakeGate(Services& services) {
  return [&services](std::string_view path, Message& message, const Call& call,
                     std::function<void(const Status&)> answer) {
    const Access access = call.access();
    const Rule rule = RuleOf(path);
    const Status fits = CheckRole(access, rule.needs, rule.name);
    auto* list = dynamic_cast<v1::ListRunsRequest*>(&message);
    if (list != nullptr && list->mine()) {
      list->set_owner(services.identify(call.peer(), access).who);
    }
    if (!fits.ok() || access.SeesAll()) {
      answer(fits);
      return;
    }
    // The message lives as long as `answer`.
    auto work = [&services, rule, &message, user = access.name, answer] {
      const auto narrow = [&](Database& db) {
        return rule.narrow(db, user, message);
      };
      answer(rule.claims ? services.store.Write(narrow)
                         : services.store.Read(narrow));
    };
    if (!services.short_work.Post(std::move(work))) {
      answer(Unavailable("the server is busy or shutting down"));
    }
  };
}

}  // namespace reprise::server
