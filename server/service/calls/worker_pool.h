// SPDX-License-Identifier: Apache-2.0
//
// A few threads with a queue per lane. There are two pools: one for short work
// (queries, storing a graph) and one for planning, so that a long plan never
// delays a page. One thread of each takes no kPatient work, so that long
// searches never delay a job, and a step that is indexed never the other pages:
//
//   lane      planning                      short work    general   prompt thread
//   kJob      the plan that a job waits for                first     first
//   kPrompt   other plans that take seconds  of a moment   then, by  then
//   kPatient  searches of minutes, curves    of a step     arrival   never
//
// A full lane refuses only its own work.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace reprise::server {

enum class Lane { kJob, kPrompt, kPatient };

class WorkerPool {
 public:
  // `max_waiting` is per lane.
  WorkerPool(int threads, size_t max_waiting, int prompt_threads = 0);
  // Like Stop.
  ~WorkerPool();

  // Queues work. Returns false, and does not run it, if too much is waiting or
  // the pool is stopping.
  bool Post(std::function<void()> work, Lane lane = Lane::kPrompt);

  size_t waiting() const;

  // Finishes what is queued and joins the threads.
  void Stop();

 private:
  struct Item {
    uint64_t number = 0;  // in order of Post
    std::function<void()> work;
  };
  using Queue = std::deque<Item>;

  void Loop(bool prompt_only);
  // Requires mutex_. Returns the queue with the next item for such a thread, or
  // null.
  Queue* Next(bool prompt_only);
  Queue& QueueOf(Lane lane) { return queues_[static_cast<size_t>(lane)]; }

  const size_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Queue, 3> queues_;
  uint64_t posted_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace reprise::server
