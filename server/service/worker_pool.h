// SPDX-License-Identifier: Apache-2.0
//
// A few threads and a queue. Two exist: one for short work (queries, storing a
// graph), one for planning, so that a long plan never delays a page.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace reprise::server {

class WorkerPool {
 public:
  WorkerPool(int threads, size_t max_waiting);
  // As Stop.
  ~WorkerPool();

  // False: too much is waiting, or the pool is stopping; nothing will run.
  bool Post(std::function<void()> work);

  size_t waiting() const;

  // Finishes what is queued and joins the threads.
  void Stop();

 private:
  void Loop();

  const size_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace reprise::server
