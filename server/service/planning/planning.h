// SPDX-License-Identifier: Apache-2.0
//
// Turns a stored graph and a request into a stored plan; used by Plan and by
// re-planning.
//
// The planner is a pure function that counts ticks; the clock is here. A plan
// is reproducible if no tick limit ended its search and it stayed within its
// time limit.
//
// In a store that several daemons share, each plan is made once over all of
// them: a request that is equal to one of before gets its plan, and one that is
// equal to one under way waits for it. If the daemon that makes it dies, another
// one begins it anew.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/convert/plan_proto.h"
#include "planner/planner.h"
#include "reprise/v1/planner.pb.h"
#include "server/core/metrics.h"
#include "server/store/quota_rows.h"
#include "server/store/run_hub.h"
#include "server/store/store.h"

namespace reprise::server {

// Calls that can be asked to return the best result so far. A cancelled stream
// can no longer deliver anything, so FinishPlan names the call instead.
class RunningCalls {
 public:
  // Registers a call under its name for its lifetime. A call with an empty name
  // cannot be found.
  class Entry {
   public:
    Entry(RunningCalls& calls, const std::string& request_id);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    bool asked_to_finish() const { return asked_; }

   private:
    friend class RunningCalls;
    RunningCalls& calls_;
    std::multimap<std::string, Entry*>::iterator place_;
    std::atomic<bool> asked_{false};
  };

  // Asks every call with this name to finish. NOT_FOUND: there is none.
  Status Finish(const std::string& request_id);

 private:
  std::mutex mutex_;
  std::multimap<std::string, Entry*> calls_;
};

// Returns the name of a user's call: one that another user's does not have.
std::string RequestIdOf(std::string_view user, std::string_view request_id);

// INVALID_ARGUMENT: longer than 64 characters.
Status CheckRequestId(const std::string& request_id);

// Replaces a plan of a run once, although two may ask for it: the job itself,
// and the report of the step that peaked above the plan's budget.
class Replacements {
 public:
  struct Result {
    Status status;           // OK: there is an answer
    v1::Plan plan;           // the answer; if feasible, only its id
    int64_t more_bytes = 0;  // held back in addition to what the old plan did
  };

  // Returns what replaces `plan_id` in a run. Calls `make` if that was not done
  // before; waits while another thread does it. A refusal (an infeasible plan,
  // or FAILED_PRECONDITION) stands for every later call that asks for as much
  // or more; any other error is forgotten.
  Result Once(const std::string& run_id, const std::string& plan_id,
              int64_t more_bytes,
              const std::function<StatusOr<v1::Plan>()>& make);

 private:
  struct Entry {
    std::string run_id;
    std::string plan_id;
    bool is_making = true;
    Result result;
  };
  using Entries = std::deque<Entry>;

  // Both require mutex_.
  Entries::iterator Find(const std::string& run_id, const std::string& plan_id);
  void DropOldest();

  std::mutex mutex_;
  std::condition_variable made_;
  Entries entries_;  // oldest first
};

// How often a plan may be replaced because a measured peak exceeded its budget.
inline constexpr uint32_t kMaxReplans = 4;

inline constexpr uint32_t kDefaultTimeLimitMs = 5000;
// A search for which the first step of a job waits ends here if it has a plan.
inline constexpr uint32_t kFirstStepMs = 1000;
inline constexpr uint32_t kMaxTimeLimitMs = 600'000;
// Plans with a larger time limit have lower priority.
inline constexpr uint32_t kMaxPromptMs = 10'000;

// The budget of a request for the plan that needs least memory.
inline constexpr std::string_view kLeastBudget = "least";

struct PlanningHooks {
  // Polled often by the planner; true ends the call with CANCELLED.
  std::function<bool()> cancelled;
  std::function<void(const v1::PlanProgress&)> on_progress;
};

class Planning {
 public:
  // The plans of a run count towards its `quota`.
  Planning(Store& store, RunHub& hub, Metrics& metrics, Quota quota = Quota(0))
      : store_(store), hub_(hub), metrics_(metrics), quota_(quota) {}

  // Answers `request` and stores the answer. `request.reserve_bytes` is
  // reserved in addition to what the graph's own measurement implies. A plan
  // within kLeastBudget is one within the bytes that it needs.
  // NOT_FOUND, INVALID_ARGUMENT as in planner.proto; CANCELLED;
  // FAILED_PRECONDITION, for requests of a run: a job has seen this plan change
  // gradients; RESOURCE_EXHAUSTED, for these too: the run's quota is used up.
  StatusOr<v1::Plan> Make(const v1::PlanRequest& request,
                          const PlanningHooks& hooks, uint32_t replan = 0);

  // Makes and stores a plan that replaces `plan_id`, which needs `more_bytes`
  // more than it says: within the same budget, with so much more reserved. If
  // nothing fits, the plan that needs least, if that is less than the old one
  // needs; otherwise the refusal, an infeasible plan, which is not stored.
  // Returns the plan that replaced it before, if that leaves as much.
  // NOT_FOUND: no such plan. FAILED_PRECONDITION: kMaxReplans plans were
  // replaced in a row, or the plan leaves as much. RESOURCE_EXHAUSTED as in
  // Make.
  StatusOr<v1::Plan> Replace(const std::string& run_id,
                             const std::string& plan_id, int64_t more_bytes,
                             const PlanningHooks& hooks);

  // Replaces a plan after a step under it measured a peak above its budget,
  // with what it needs beyond its prediction reserved. Returns nothing if the
  // plan is no longer the run's newest, if kMaxReplans plans were replaced in a
  // row, or if Replace finds none.
  std::optional<v1::Plan> Replan(const std::string& run_id,
                                 const std::string& plan_id,
                                 int64_t measured_peak_bytes);

  // Makes the plans of a running job again within another budget: those named,
  // each with the capabilities and the reserve that it was made for; `budget` as
  // in PlanRequest. They are stored as the run's only if all are feasible; else
  // returns the one that is not, alone. NOT_FOUND, and errors as Make.
  StatusOr<std::vector<v1::Plan>> Rebudget(
      const std::string& run_id, const std::vector<std::string>& plan_ids,
      const std::string& budget, const PlanningHooks& hooks);

  // Loads what a request asks about from the store.
  StatusOr<formats::Task> LoadTask(const v1::PlanRequest& request);

  // The calls that FinishPlan can name.
  RunningCalls& calls() { return calls_; }

  // Ends planning in progress soon.
  void Stop() { stopping_ = true; }
  bool stopping() const { return stopping_; }

 private:
  // Make without looking whether the plan is there.
  StatusOr<v1::Plan> MakeHere(const v1::PlanRequest& request,
                              const PlanningHooks& hooks, uint32_t replan,
                              const std::string& name);
  // Make where several daemons share the store.
  StatusOr<v1::Plan> MakeOnce(const v1::PlanRequest& request,
                              const PlanningHooks& hooks, uint32_t replan);
  // Returns the plan that answers a request of this name (planning_once.cc), as the run's.
  StatusOr<std::optional<v1::Plan>> Known(const v1::PlanRequest& request,
                                          const std::string& name);
  // `finished`: whether somebody asked for what was found so far (FinishPlan).
  StatusOr<v1::Plan> Solve(const v1::PlanRequest& request,
                           const PlanningHooks& hooks, uint32_t replan,
                           bool* finished = nullptr);
  // Solves `request` within the smallest budget for which a plan is found, and
  // makes that its budget.
  StatusOr<v1::Plan> SolveLeast(v1::PlanRequest& request,
                                const PlanningHooks& hooks, bool* finished);
  // Stores a plan, as the run's and as the answer to a request; "": to none.
  Status Keep(const v1::PlanRequest& request, const v1::Plan& plan,
              const std::string& name);
  // Makes the plan that Replace returns, and stores it if it is feasible.
  StatusOr<v1::Plan> MakeReplacement(const std::string& run_id,
                                     const std::string& plan_id,
                                     int64_t more_bytes,
                                     const PlanningHooks& hooks);
  // FAILED_PRECONDITION: a job has seen this plan change gradients; names its run
  // only to the owner.
  Status CheckTrusted(const v1::Plan& plan, const std::string& run_id);

  Store& store_;
  RunHub& hub_;
  Metrics& metrics_;
  const Quota quota_;
  RunningCalls calls_;
  Replacements replacements_;
  std::atomic<bool> stopping_{false};
};

}  // namespace reprise::server
