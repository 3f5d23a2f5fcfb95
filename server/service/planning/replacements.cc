// SPDX-License-Identifier: Apache-2.0
#include "server/service/planning/replacements.h"

#include <algorithm>
#include <utility>

namespace reprise::server {

namespace {

// A request for the replacement of a plan follows its step within seconds, so
// older entries are of no use.
constexpr size_t kMaxEntries = 256;

}  // namespace

Replacements::Entries::iterator Replacements::Find(const std::string& run_id,
                                                   const std::string& plan_id) {
  return std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return e.run_id == run_id && e.plan_id == plan_id;
  });
}

void Replacements::DropOldest() {
  if (entries_.size() < kMaxEntries) return;
  const auto oldest =
      std::find_if(entries_.begin(), entries_.end(),
                   [](const Entry& entry) { return !entry.is_making; });
  if (oldest != entries_.end()) entries_.erase(oldest);
}

Replacements::Result Replacements::Once(
    const std::string& run_id, const std::string& plan_id, int64_t more_bytes,
    const std::function<StatusOr<std::string>()>& make) {
  std::unique_lock lock(mutex_);
  auto entry = Find(run_id, plan_id);
  while (entry != entries_.end() && entry->is_making) {
    made_.wait(lock);
    entry = Find(run_id, plan_id);
  }
  if (entry != entries_.end()) {
    const Result& known = entry->result;
    if (known.status.ok() || more_bytes >= known.more_bytes) return known;
    entries_.erase(entry);
  }
  DropOldest();
  entries_.push_back({.run_id = run_id, .plan_id = plan_id, .result = {}});
  lock.unlock();

  Result result{.status = OkStatus(), .plan_id = "", .more_bytes = more_bytes};
  StatusOr<std::string> made = make();
  if (made.ok()) {
    result.plan_id = *std::move(made);
  } else {
    result.status = made.status();
  }

  lock.lock();
  entry = Find(run_id, plan_id);
  const bool stands =
      result.status.ok() || result.status.code() == Code::kFailedPrecondition;
  if (stands) {
    entry->is_making = false;
    entry->result = result;
  } else {
    entries_.erase(entry);
  }
  made_.notify_all();
  return result;
}

}  // namespace reprise::server
