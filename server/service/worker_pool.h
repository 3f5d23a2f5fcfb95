// SPDX-License-Identifier: Apache-2.0
//
// A few threads and a queue per lane. Two pools exist: one for short work
// (queries, storing a graph), one for planning, so that a long plan never
// delays a page. Of the planning threads one takes no patient work, so that
// long searches never delay a job:
//
//   lane      what                                   general   prompt thread
//   kJob      the plan that a job waits for           first     first
//   kPrompt   other plans that are made in seconds    in order  then
//   kPatient  searches of minutes, whole curves       of coming never
//
// A full lane refuses its own work alone.
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
  // As Stop.
  ~WorkerPool();

  // False: too much is waiting, or the pool is stopping; nothing will run.
  bool Post(std::function<void()> work, Lane lane = Lane::kPrompt);

  size_t waiting() const;

  // Finishes what is queued and joins the threads.
  void Stop();

 private:
  struct Item {
    uint64_t number = 0;  // of coming
    std::function<void()> work;
  };
  using Queue = std::deque<Item>;

  void Loop(bool prompt_only);
  // With mutex_ held. What is next for such a thread; null: nothing.
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
