// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/watch_run.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "server/service/runs/verdict.h"
#include "server/store/chunk_rows.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"
#include "server/store/window_rows.h"

namespace reprise::server {
namespace {

constexpr auto kShortestPause = std::chrono::milliseconds(30);
// How soon a client that disconnected, or has caught up, is noticed.
constexpr auto kLongestPause = std::chrono::milliseconds(250);

// Reads what was stored since `version` was last seen.
Status Update(Database& db, uint64_t version, FollowedRun& followed) {
  if (followed.version == version) return OkStatus();
  ASSIGN_OR_RETURN(v1::Run run, LoadRun(db, followed.id));
  RETURN_IF_ERROR(followed.reports.Read(db, followed.id));
  ASSIGN_OR_RETURN(*run.mutable_verdict(), followed.reports.Verdict(db, run));
  RETURN_IF_ERROR(AddSessionsAndWindow(db, run));
  Describe(run);
  followed.run = std::move(run);
  followed.version = version;
  return OkStatus();
}

}  // namespace

RunWatcher::RunWatcher(Store& store, RunHub& hub, RunFollowers& followers)
    : store_(store),
      hub_(hub),
      followers_(followers),
      thread_([this] { Loop(); }) {}

RunWatcher::~RunWatcher() { Stop(); }

void RunWatcher::Add(std::string run_text, uint32_t buckets,
                     std::shared_ptr<Call> call) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      auto watch = std::make_unique<Watch>();
      watch->run_text = std::move(run_text);
      watch->buckets = buckets;
      watch->call = std::move(call);
      added_.push_back(std::move(watch));
    }
  }
  if (call != nullptr) {
    call->Finish(Unavailable("the server is shutting down"));
    return;
  }
  hub_.Wake();
}

void RunWatcher::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  hub_.Wake();
  if (thread_.joinable()) thread_.join();
}

void RunWatcher::Loop() {
  std::vector<std::unique_ptr<Watch>> watches;
  while (true) {
    const uint64_t seen = hub_.total();
    {
      const std::lock_guard lock(mutex_);
      for (auto& watch : added_) watches.push_back(std::move(watch));
      added_.clear();
      if (stopping_) break;
    }
    std::erase_if(watches, [this](auto& watch) { return Serve(*watch); });
    if (watches.empty()) {
      hub_.Wait(seen, std::chrono::hours(1));
    } else {
      hub_.Wait(seen, kLongestPause);
      std::this_thread::sleep_for(kShortestPause);
    }
  }
  for (auto& watch : watches) {
    watch->call->Finish(Unavailable("the server is shutting down"));
  }
}

bool RunWatcher::Serve(Watch& watch) {
  if (watch.call->cancelled()) {
    watch.call->Finish(Cancelled("the client left"));
    return true;
  }
  if (watch.call->unsent() > 0) return false;
  if (watch.run_id.empty()) {
    StatusOr<std::string> found = store_.Get(ResolveRunId, watch.run_text);
    if (!found.ok()) {
      watch.call->Finish(found.status());
      return true;
    }
    watch.run_id = *std::move(found);
  }
  // Read the version before the rows: a change in between causes an extra
  // event, never a missing one.
  const uint64_t version = hub_.VersionOf(watch.run_id);
  if (watch.started && version == watch.seen_version) return false;
  v1::RunEvent event;
  const Status status = store_.Read([&](Database& db) -> Status {
    // It may be another's by now.
    if (IdIn(watch.run_text) == watch.run_id) {
      RETURN_IF_ERROR(ResolveRunId(db, watch.run_text).status());
    }
    ASSIGN_OR_RETURN(event, NextEvent(db, version, watch));
    return OkStatus();
  });
  if (!status.ok()) {
    watch.call->Finish(status);
    return true;
  }
  watch.seen_version = version;
  watch.started = true;
  watch.call->Send(event);
  if (event.run().state() == v1::RUN_STATE_RUNNING) return false;
  watch.call->Finish(OkStatus());
  return true;
}

StatusOr<v1::RunEvent> RunWatcher::NextEvent(Database& db, uint64_t version,
                                             Watch& watch) {
  v1::RunEvent event;
  const bool folds = !watch.started && watch.buckets > 0;
  RETURN_IF_ERROR(followers_.With(
      db, watch.run_id, version, [&](const FollowedRun& followed) -> Status {
        *event.mutable_run() = followed.run;
        if (!folds) return OkStatus();
        *event.mutable_past() = followed.reports.log().Fold(
            0, std::numeric_limits<uint64_t>::max(), watch.buckets);
        watch.last_step = followed.reports.last_step();
        watch.last_check = followed.reports.last_check();
        return OkStatus();
      }));
  if (!folds) {
    ASSIGN_OR_RETURN(std::vector<StepRow> steps,
                     LoadSteps(db, watch.run_id, watch.last_step));
    for (StepRow& row : steps) {
      watch.last_step = row.id;
      *event.add_steps() = std::move(row.report);
    }
    ASSIGN_OR_RETURN(std::vector<CheckRow> checks,
                     LoadChecks(db, watch.run_id, watch.last_check));
    for (CheckRow& row : checks) {
      watch.last_check = row.id;
      *event.add_checks() = std::move(row.report);
    }
  }
  if (event.run().plan_id() != watch.sent_plan_id) {
    ASSIGN_OR_RETURN(PlanRow newest, LoadPlan(db, event.run().plan_id()));
    watch.sent_plan_id = event.run().plan_id();
    *event.mutable_plan() = std::move(newest.plan);
  }
  return event;
}

Status RunFollowers::With(
    Database& db, const std::string& run_id, uint64_t version,
    const std::function<Status(const FollowedRun&)>& use) {
  std::shared_ptr<FollowedRun> followed;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(runs_.begin(), runs_.end(),
                     [&](const auto& one) { return one->id == run_id; });
    if (found != runs_.end()) {
      followed = *found;
      runs_.erase(found);
    } else {
      followed = std::make_shared<FollowedRun>(run_id);
    }
    if (runs_.size() >= kKept) runs_.erase(runs_.begin());
    runs_.push_back(followed);
  }
  const std::lock_guard lock(followed->mutex);
  const Status status = Update(db, version, *followed);
  if (!status.ok()) {
    // A run that was removed, or half read, is followed anew.
    const std::lock_guard all(mutex_);
    std::erase(runs_, followed);
    return status;
  }
  return use(*followed);
}

}  // namespace reprise::server
