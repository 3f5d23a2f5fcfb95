// SPDX-License-Identifier: Apache-2.0
//
// Indexed steps that were asked for lately, so that a page that zooms reads its
// records once. One step of each run with a plan and one without; at most 256
// MiB together, but for the newest, and none that nobody asked for in ten
// minutes. A step that grew since is read again.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "server/service/memory/recorded_step.h"
#include "server/store/store.h"

namespace reprise::server {

class StepCache {
 public:
  explicit StepCache(size_t most_bytes = size_t{256} << 20)
      : most_bytes_(most_bytes) {}

  // Returns the newest traced step of the run, with or without a plan.
  // NOT_FOUND: no step was traced, or its baseline is missing. Thread-safe.
  StatusOr<std::shared_ptr<const RecordedStep>> Get(Database& db,
                                                    const std::string& run_id,
                                                    bool planned);
  // The same of a run that is named as users do (ResolveRunId).
  StatusOr<std::shared_ptr<const RecordedStep>> Of(Store& store,
                                                   const std::string& run_text,
                                                   bool planned);

  // Forgets what nobody asked for in ten minutes. Returns how many bytes it was.
  size_t DropIdle();
  size_t held_bytes() const;

 private:
  using Clock = std::chrono::steady_clock;
  // Filled by the first who asks; the others wait for it.
  struct Slot {
    std::string run_id;
    bool planned = false;
    int64_t row_id = 0;
    uint64_t records = 0;  // of the run, when it was read
    std::string graph_id;
    Clock::time_point used_at;
    size_t bytes = 0;
    std::mutex filling;
    std::shared_ptr<const RecordedStep> step;
  };

  std::shared_ptr<Slot> Find(const std::string& run_id, bool planned,
                             int64_t row_id, uint64_t records,
                             const std::string& graph_id);
  void Trim(const Slot* newest);

  const size_t most_bytes_;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<Slot>> slots_;  // newest use first
};

}  // namespace reprise::server
