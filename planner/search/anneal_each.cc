// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "planner/search/search.h"

namespace reprise::planner {
namespace {

// How often a search that waits for others checks whether it should stop.
constexpr std::chrono::milliseconds kAnnealPatience{5};

}  // namespace

void Search::AnnealEach(size_t count, const std::function<bool()>& is_over,
                        const std::function<AnnealingRun(size_t)>& run_of) {
  if (!IsShared()) {
    for (size_t i = 0; i < count && !is_over(); ++i) {
      AnnealingRun run = run_of(i);
      LocalSearch(problem_, run.options, run.execs, archive_, effort_);
    }
    return;
  }
  std::mutex mutex;  // guards the following, and this search
  std::condition_variable ended;
  size_t next = 0;
  int running = 0;
  int64_t ticks = 0;
  std::atomic<bool> over = false;
  const auto anneal = [&](const std::function<bool()>& should_stop) {
    std::unique_lock lock(mutex);
    while (next < count) {
      over = over || is_over();
      if (over) return;
      AnnealingRun run = run_of(next++);
      ++running;
      lock.unlock();
      Archive found;
      Effort effort(run.options.ticks, should_stop);
      LocalSearch(problem_, run.options, run.execs, found, effort);
      lock.lock();
      ticks += effort.ticks();
      if (const Archive::Point* best = found.Best(request_.budget_bytes)) {
        archive_.Add(*best);
      }
      over = over || is_over();
      --running;
      ended.notify_all();
    }
  };
  // For this search, on its own thread.
  const std::function<bool()> stop_mine = [&] {
    if (!over && effort_.should_stop() && effort_.should_stop()()) over = true;
    return over.load();
  };
  const std::function<bool()> stop_help = [&] { return over.load(); };
  const auto mine = [&] {
    anneal(stop_mine);
    std::unique_lock lock(mutex);
    while (running > 0) {
      ended.wait_for(lock, kAnnealPatience);
      stop_mine();
    }
  };
  request_.exchange->Together(mine, [&] { anneal(stop_help); });
  effort_.Spend(ticks);
}

}  // namespace reprise::planner
