// SPDX-License-Identifier: Apache-2.0
//
// Administration of the store: removing runs by hand, or by age and size.
#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "base/str_cat.h"
#include "server/core/log.h"
#include "server/service/calls/handlers.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

constexpr int kRunsPerCall = 8;

bool UnderWay(const v1::Run& run) {
  return run.state() == v1::RUN_STATE_RUNNING;
}

// Returns the ids of runs that ended before `before_ns`, earliest end first.
StatusOr<std::vector<std::string>> Ended(Database& db, int64_t before_ns,
                                         int64_t limit) {
  ASSIGN_OR_RETURN(
      Statement select,
      db.Select("SELECT run_id FROM runs WHERE state <> ?1"
                " AND ended_ns < ?2 AND started_ns < ?2"
                " ORDER BY CASE WHEN ended_ns < started_ns THEN started_ns"
                "  ELSE ended_ns END, run_id LIMIT ?3",
                static_cast<int64_t>(v1::RUN_STATE_RUNNING), before_ns, limit));
  return select.All(
      [](const Statement& row) { return std::string(row.Text(0)); });
}

// Removes a run in one transaction, unless it has resumed meanwhile or is not
// `owner`'s, if that is not empty; and tells those who look at it and at the list.
StatusOr<bool> RemoveEnded(Store& store, RunHub& hub, const std::string& run_id,
                           const std::string& owner = "") {
  bool removed = false;
  RETURN_IF_ERROR(store.Write([&](Database& db) -> Status {
    const StatusOr<v1::Run> run = LoadRun(db, run_id);
    if (!run.ok()) {
      return run.status().code() == Code::kNotFound ? OkStatus() : run.status();
    }
    if (UnderWay(*run) || (!owner.empty() && run->owner() != owner)) {
      return OkStatus();
    }
    removed = true;
    return RemoveRun(db, run_id);
  }));
  if (removed) hub.Notify(run_id);
  return removed;
}

void GiveBack(Store& store) {
  const Status status = store.GiveBack();
  if (!status.ok()) LogWarning("store_failed", status.message());
}

// Returns the runs that a request selects, oldest first.
StatusOr<std::vector<v1::Run>> Chosen(Database& db,
                                      const v1::RemoveRunsRequest& request) {
  std::vector<v1::Run> chosen;
  if (request.run_id_size() > 0) {
    std::set<std::string> ids;
    for (const std::string& text : request.run_id()) {
      ASSIGN_OR_RETURN(const std::string id, ResolveRunId(db, text));
      if (!ids.insert(id).second) continue;
      ASSIGN_OR_RETURN(v1::Run run, LoadRun(db, id));
      if (UnderWay(run)) {
        return FailedPrecondition(StrCat(
            "run ", id, " is under way; end it first, nothing was removed"));
      }
      chosen.push_back(std::move(run));
    }
  } else {
    ASSIGN_OR_RETURN(const int64_t count, CountRuns(db));
    ASSIGN_OR_RETURN(std::vector<v1::Run> runs, LoadRuns(db, count));
    if (!request.owner().empty()) {
      std::erase_if(runs, [&](const v1::Run& run) {
        return run.owner() != request.owner();
      });
    }
    const size_t kept =
        request.has_keep_newest()
            ? std::min<size_t>(request.keep_newest(), runs.size())
            : 0;
    for (size_t i = kept; i < runs.size(); ++i) {
      const int64_t end = std::max(runs[i].ended_ns(), runs[i].started_ns());
      const bool old =
          request.ended_before_ns() == 0 || end < request.ended_before_ns();
      if (old && !UnderWay(runs[i])) chosen.push_back(std::move(runs[i]));
    }
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const v1::Run& a, const v1::Run& b) {
                     return a.started_ns() < b.started_ns();
                   });
  return chosen;
}

}  // namespace

StatusOr<v1::RemoveRunsResponse> RemoveRuns(
    Services& services, const v1::RemoveRunsRequest& request) {
  const bool rule = request.ended_before_ns() != 0 || request.has_keep_newest();
  if ((request.run_id_size() > 0) == rule) {
    return InvalidArgument(
        "name runs, or say which go by ended_before_ns and keep_newest; not "
        "both");
  }
  if (request.ended_before_ns() < 0) {
    return InvalidArgument("ended_before_ns: must not be negative");
  }
  v1::RemoveRunsResponse response;
  ASSIGN_OR_RETURN(std::vector<v1::Run> chosen,
                   services.store.Get(Chosen, request));
  response.set_store_bytes_before(services.store.SizeBytes());
  for (v1::Run& run : chosen) {
    if (!request.dry_run()) {
      ASSIGN_OR_RETURN(const bool gone,
                       RemoveEnded(services.store, services.hub, run.run_id(),
                                   request.owner()));
      if (!gone) continue;
      LogInfo("run_removed",
              StrCat("run ", run.run_id(), " removed: asked for"),
              {{"run_id", run.run_id()}});
    }
    *response.add_runs() = std::move(run);
  }
  if (!request.dry_run() && response.runs_size() > 0) {
    GiveBack(services.store);
    if (const Status status = services.store.Checkpoint(); !status.ok()) {
      LogWarning("store_failed", status.message());
    }
  }
  response.set_store_bytes_after(services.store.SizeBytes());
  return response;
}

StatusOr<int> ApplyRetention(Store& store, RunHub& hub, const Retention& limits,
                             int64_t now_ns) {
  std::vector<std::string> ids;
  const char* why = "age";
  if (limits.seconds > 0) {
    ASSIGN_OR_RETURN(ids,
                     store.Get(Ended, now_ns - limits.seconds * 1'000'000'000,
                               kRunsPerCall));
  }
  if (ids.empty() && limits.bytes > 0) {
    ASSIGN_OR_RETURN(const int64_t used, store.UsedBytes());
    // One run at a time, because its size is not known in advance.
    why = "size";
    if (used > limits.bytes) {
      ASSIGN_OR_RETURN(
          ids, store.Get(Ended, std::numeric_limits<int64_t>::max(), 1));
    }
  }
  int removed = 0;
  for (const std::string& id : ids) {
    ASSIGN_OR_RETURN(const bool gone, RemoveEnded(store, hub, id));
    if (!gone) continue;
    ++removed;
    LogInfo("run_removed",
            StrCat("run ", id, " removed: the store keeps less by ", why),
            {{"run_id", id}});
  }
  if (removed > 0) GiveBack(store);
  return removed;
}

}  // namespace reprise::server
