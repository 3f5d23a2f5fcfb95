// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/worker_pool.h"

#include <new>
#include <utility>

#include "server/core/log.h"

namespace reprise::server {

WorkerPool::WorkerPool(int threads, size_t max_waiting, int prompt_threads)
    : max_waiting_(max_waiting) {
  for (int i = 0; i < threads + prompt_threads; ++i) {
    threads_.emplace_back([this, prompt = i >= threads] { Loop(prompt); });
  }
}

WorkerPool::~WorkerPool() { Stop(); }

bool WorkerPool::Post(std::function<void()> work, Lane lane) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || QueueOf(lane).size() >= max_waiting_) return false;
    QueueOf(lane).push_back({++posted_, std::move(work)});
  }
  // Wake all: a single woken thread might not take this lane.
  changed_.notify_all();
  return true;
}

size_t WorkerPool::waiting() const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const Queue& queue : queues_) count += queue.size();
  return count;
}

void WorkerPool::Stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

WorkerPool::Queue* WorkerPool::Next(bool prompt_only) {
  if (Queue& jobs = QueueOf(Lane::kJob); !jobs.empty()) return &jobs;
  Queue& prompt = QueueOf(Lane::kPrompt);
  Queue& patient = QueueOf(Lane::kPatient);
  if (prompt_only || patient.empty()) return prompt.empty() ? nullptr : &prompt;
  if (prompt.empty()) return &patient;
  return prompt.front().number < patient.front().number ? &prompt : &patient;
}

void WorkerPool::Loop(bool prompt_only) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || Next(prompt_only); });
    Queue* queue = Next(prompt_only);
    if (queue == nullptr) return;
    std::function<void()> work = std::move(queue->front().work);
    queue->pop_front();
    lock.unlock();
    try {
      work();
    } catch (const std::bad_alloc&) {
      // The call ends with its last reference, see method.cc.
      LogError("out_of_memory", "out of memory; a request is given up");
    }
    work = nullptr;  // destroy its captures outside the lock
    lock.lock();
  }
}

}  // namespace reprise::server
