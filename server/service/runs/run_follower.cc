// SPDX-License-Identifier: Apache-2.0
#include "server/service/runs/run_follower.h"

#include <algorithm>

#include "server/service/runs/standing.h"
#include "server/store/run_rows.h"
#include "server/store/window_rows.h"

namespace reprise::server {

Status RunFollower::Update(Database& db, uint64_t version) {
  if (read_ && version == version_) return OkStatus();
  ASSIGN_OR_RETURN(v1::Run run, LoadRun(db, run_id_));
  RETURN_IF_ERROR(reports_.Read(db, run_id_));
  ASSIGN_OR_RETURN(*run.mutable_verdict(), reports_.Verdict(db, run));
  RETURN_IF_ERROR(AddSessionsAndWindow(db, run));
  Describe(run);
  run_ = std::move(run);
  version_ = version;
  read_ = true;
  return OkStatus();
}

Status RunFollowers::With(
    Database& db, const std::string& run_id, uint64_t version,
    const std::function<Status(const RunFollower&)>& use) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(entries_.begin(), entries_.end(),
                     [&](const auto& one) { return one->id == run_id; });
    if (found != entries_.end()) {
      entry = *found;
      entries_.erase(found);
    } else {
      entry = std::make_shared<Entry>(run_id);
    }
    if (entries_.size() >= kKept) entries_.erase(entries_.begin());
    entries_.push_back(entry);
  }
  const std::lock_guard lock(entry->mutex);
  const Status status = entry->follower.Update(db, version);
  if (!status.ok()) {
    // A run that was removed, or half read, is followed anew.
    const std::lock_guard all(mutex_);
    std::erase(entries_, entry);
    return status;
  }
  return use(entry->follower);
}

}  // namespace reprise::server
