// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/daemon.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <vector>

#include "server/collect/process.h"
#include "server/core/log.h"
#include "server/daemon/daemon_impl.h"
#include "server/service/calls/handlers.h"
#include "server/store/damage.h"
#include "server/store/plan_rows.h"
#include "server/store/session_rows.h"

namespace reprise::server {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kOrphanPause = seconds(5);
constexpr auto kRetentionPause = seconds(60);
constexpr auto kMemoryPause = seconds(10);
constexpr auto kCallGrace = seconds(2);
constexpr int64_t kDayNs = 86'400'000'000'000;

// Since the machine started, asleep or not: no clock that anybody sets.
int64_t BootNs() {
  timespec now{};
  (void)clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Ends sessions whose process is gone without a notice, because the job died
// while no daemon was running. They are ended as killed, so that no run stays
// "running" forever. A collector that still has records of such a session
// revives it with its Hello and ends it properly.
Status EndOrphans(Store& store, RunHub& hub,
                  const std::function<bool(const std::string&)>& connected) {
  ASSIGN_OR_RETURN(std::vector<LiveSession> sessions,
                   store.Get(LoadLiveSessions));
  const std::string boot_id = CurrentBootId();
  for (const LiveSession& session : sessions) {
    // Processes on other machines cannot be seen; after a reboot none is alive.
    const bool of_this_boot = session.boot_id == boot_id;
    if (!of_this_boot || session.pid == 0 || connected(session.session_id) ||
        LifeOf(session.pid, session.pid_start_ticks) == Life::kAlive) {
      continue;
    }
    v1::Bye bye;
    bye.set_killed(true);
    RETURN_IF_ERROR(store.Write([&](Database& db) {
      return CloseSession(db, session.session_id, bye, RealtimeNs());
    }));
    LogInfo("session_ended",
            StrCat("session ", session.session_id, " of run ", session.run_id,
                   " ended: process ", session.pid, " is gone"),
            {{"run_id", session.run_id},
             {"session_id", session.session_id},
             {"pid", int64_t{session.pid}}});
    hub.Notify(session.run_id);
  }
  return OkStatus();
}

}  // namespace

// ---- While it runs ----

// Passes on what somebody asked the centre for. A plan is checked and stored
// first, as an answer to the request of the plan that it replaces. Where that is
// another machine's, only the job's executor checks it.
void RunningDaemon::Relay(const std::string& run_id,
                          const std::string& session_id, const v1::Down& down) {
  if (down.has_plan()) {
    v1::PutPlanRequest request;
    request.set_run_id(run_id);
    *request.mutable_plan() = down.plan().plan();
    request.set_newest(true);
    StatusOr<PlanRow> old = store_->Get(LoadPlan, down.plan().replaces());
    Status stored = old.status();
    if (old.ok()) *request.mutable_request() = std::move(old->request);
    request.mutable_request()->set_budget(request.plan().budget());
    if (stored.ok()) stored = PutPlan(*services_, request).status();
    if (!stored.ok() && stored.code() != Code::kNotFound) {
      LogWarning("plan_refused",
                 StrCat("run ", run_id,
                        ": a plan from the centre is not "
                        "taken: ",
                        stored.message()),
                 {{"run_id", run_id}});
      return;
    }
  }
  (void)ingest_->Relay(session_id, down);
}

// After planned steps above their budget: plans again, off the committer's
// thread.
void RunningDaemon::OnSteps(const std::string& run_id,
                            const std::vector<v1::StepReport>& steps) {
  std::string plan_id;
  int64_t peak_bytes = 0;
  for (const v1::StepReport& step : steps) {
    // Steps that did not follow the plan to the end do not count.
    if (!step.planned() || step.kept_all() || step.oom()) continue;
    if (step.plan_id().empty()) continue;
    if (step.plan_id() != plan_id) peak_bytes = 0;
    plan_id = step.plan_id();
    peak_bytes = std::max(peak_bytes, step.peak_bytes());
  }
  if (plan_id.empty()) return;
  const auto replan = [this, run_id, plan_id, peak_bytes] {
    const std::optional<v1::Plan> plan =
        planning_->Replan(run_id, plan_id, peak_bytes);
    if (plan) ingest_->PushPlan(run_id, *plan, plan_id);
  };
  (void)planners_->Post(replan, Lane::kJob);
}

Status RunningDaemon::LearnNewest() {
  booted_ns_ = BootNs();
  newest_ns_ = RealtimeNs();
  return store_->Read([this](Database& db) -> Status {
    ASSIGN_OR_RETURN(const auto row,
                     db.First("SELECT COUNT(*), MAX(CASE WHEN ended_ns <"
                              " started_ns THEN started_ns ELSE ended_ns END)"
                              " FROM runs"));
    if (row && row->Int(0) > 0) newest_ns_ = row->Int(1);
    return OkStatus();
  });
}

// Returns the time by which runs are old. A clock that jumps ahead makes nothing
// old: the time is at most as much past the newest run that was stored when this
// daemon began as it has been running, and a day.
int64_t RunningDaemon::BelievedNow() const {
  return std::min(RealtimeNs(), newest_ns_ + kDayNs + (BootNs() - booted_ns_));
}

// A burst of requests leaves much freed memory in malloc (malloc_policy.h).
// Keeping it pays for chunks, but not after a large burst.
void RunningDaemon::ReturnMemory() {
  constexpr uint64_t kCrowd = 16 << 20;
  const uint64_t graphs = sent_graphs_.EmptiedFrom();
  const uint64_t bodies = http_->BodiesEmptiedFrom();
  const uint64_t steps = services_->steps.DropIdle();
  // What gRPC took for a burst of calls is seen in malloc alone.
  constexpr size_t kIdleBytes = 256 << 20;
  const Clock::time_point now = Clock::now();
  bool idle = false;
  if (metrics_.calls_under_way == 0 && now - looked_ >= kMemoryPause) {
    looked_ = now;
    idle = ::mallinfo2().fordblks > kIdleBytes;
  }
  if (idle || std::max({graphs, bodies, steps}) > kCrowd) ::malloc_trim(0);
}

bool RunningDaemon::Tick() {
  const Clock::time_point now = Clock::now();
  // Daemons that share a store may not see each other's processes, such as those
  // of another container: whoever collects from a session ends it.
  if (!store_->shared() && now - last_orphans_ >= kOrphanPause) {
    last_orphans_ = now;
    const Status status =
        EndOrphans(*store_, hub_, [this](const std::string& session_id) {
          return ingest_->Connected(session_id);
        });
    if (!status.ok()) LogWarning("store_failed", status.message());
  }
  if (now >= next_retention_) {
    const StatusOr<int> removed = ApplyRetention(
        *store_, hub_, {options_.keep_seconds, options_.keep_bytes},
        BelievedNow());
    if (!removed.ok())
      LogWarning("retention_failed", removed.status().message());
    // If there may be more to remove, continue at the next tick.
    const bool more = removed.ok() && *removed > 0;
    KeepRoom(options_.data_dir);
    next_retention_ = more ? now : now + kRetentionPause;
  }
  ReturnMemory();
  if (!options_.private_daemon) return false;
  // Without its socket nobody can find the daemon any more.
  if (::access(options_.agent_socket.c_str(), F_OK) != 0) return true;
  // A disconnected agent stays listed until the server knows its end. If the
  // parent has exited, getppid() changes. An open page sends requests
  // regularly.
  const uint64_t asked = metrics_.calls_started;
  if (!collector_->Agents().empty() || getppid() == options_.with_parent ||
      asked != asked_before_ || metrics_.calls_under_way > 0) {
    asked_before_ = asked;
    last_needed_ = now;
  }
  return now - last_needed_ >= seconds(options_.linger_seconds) &&
         collector_->Retire();
}

// ---- The end ----

void RunningDaemon::Stop(milliseconds patience) {
  if (stopping_.exchange(true)) return;
  if (grpc_ != nullptr) grpc_->StopServing();
  if (collector_ != nullptr && patience.count() > 0) {
    const Status drained = collector_->Drain(patience);
    if (!drained.ok()) {
      LogWarning("not_drained",
                 StrCat("the rest stays in the spool: ", drained.message()));
    }
  }
  if (uplink_ != nullptr && patience.count() > 0) uplink_->Drain(patience);
  if (ingest_ != nullptr) ingest_->DrainAll();
  for (const auto& listener : listeners_) listener->Stop();
  if (planning_ != nullptr) planning_->Stop();
  if (watcher_ != nullptr) watcher_->Stop();
  if (planners_ != nullptr) planners_->Stop();
  // Everything that asks the collector must end before it.
  if (short_work_ != nullptr) short_work_->Stop();
  if (imports_ != nullptr) imports_->Stop();
  if (http_ != nullptr) http_->Stop();
  collector_.reset();
  uplink_.reset();
  if (grpc_ != nullptr) {
    grpc_->Shutdown(patience.count() > 0 ? kCallGrace : milliseconds(0));
  }
  if (tls_ != nullptr) tls_->Stop();
  if (committer_ != nullptr) committer_->Stop();
  if (store_ != nullptr) {
    if (const Status status = store_->Checkpoint(); !status.ok()) {
      LogWarning("store_failed", status.message());
    }
  }
  Abandon();
}

StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options) {
  auto daemon = std::make_unique<RunningDaemon>(options);
  RETURN_IF_ERROR(daemon->Start());
  return std::unique_ptr<Daemon>(std::move(daemon));
}

}  // namespace reprise::server
