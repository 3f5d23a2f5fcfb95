// SPDX-License-Identifier: Apache-2.0
//
// What the streams of the fake CUDA runtime have still to do. A stream is a
// queue; its work runs in order, on the thread whose call makes it run. Between
// queues only waits order anything, so a program that lacks one is shown wrong
// bytes. FAKEGPU_WORK says when work runs, each time at a legal moment:
//
//   earliest     as soon as it is submitted
//   latest       only when a call has to wait for it; then no more than it needs
//   random:SEED  any number of items of any queue, whenever something is
//                submitted, and when a call has to wait
//
//   stream A   [copy][kernel][event e][kernel]      synchronize(B), latest:
//   stream B   [kernel][wait e][copy]               B's kernel, A up to e, B's
//                                                   copy; not A's last kernel
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "runtime.h"

namespace fakegpu {

struct Queue {
  int device = 0;
  // Ordered with the legacy default stream, as the streams are that were not
  // created with cudaStreamNonBlocking.
  bool blocking = true;
  uint64_t added = 0;
  uint64_t done = 0;  // The item at the front of `todo` is number done + 1.
  std::deque<std::function<void()>> todo;
  using Freed = std::vector<std::pair<char*, size_t>>;
  Freed freed;  // not spoiled yet
};

namespace {

constexpr int kSpoiled = 0xff;  // NaN, and -1
constexpr int kQuestions = 3;   // that `latest` answers with no

enum class Moment { kEarliest, kLatest, kRandom };
struct Order {
  Moment moment = Moment::kEarliest;
  std::mt19937_64 random;
  Order() {
    const char* const text = getenv("FAKEGPU_WORK");
    const std::string asked = text == nullptr ? "earliest" : text;
    if (asked == "latest") {
      moment = Moment::kLatest;
    } else if (asked.rfind("random:", 0) == 0) {
      moment = Moment::kRandom;
      random.seed(strtoull(asked.c_str() + 7, nullptr, 10));
    } else if (asked != "earliest") {
      std::fprintf(stderr, "FAKEGPU_WORK=%s: earliest, latest, random:SEED\n",
                   asked.c_str());
      abort();
    }
  }
  bool Coin(unsigned sides) { return random() % sides == 0; }
};
// Read when the first work is submitted: a fork may have set it after the import.
Order& order() {
  static Order one;
  return one;
}

// Held while work runs, too, which may run other queues' work itself.
std::recursive_mutex lock;
using Guard = std::lock_guard<std::recursive_mutex>;
std::vector<Queue*> queues;  // never deleted: events may point at them
std::map<int, Queue*> legacy;
// What was freed in the graph that is captured, and is not spoiled yet.
Queue::Freed freed_in_graph;

Queue* NewQueue(int device, bool blocking) {
  queues.push_back(new Queue{device, blocking});
  return queues.back();
}

Queue* Legacy(int device) {
  Queue*& one = legacy[device];
  if (one == nullptr) one = NewQueue(device, true);
  return one;
}

// The handles 0 to 2 are the default streams of the current device.
Queue* Of(cudaStream_t stream) {
  return reinterpret_cast<Queue*>(Named(stream, Current()));
}

void SpoilNow(const Queue::Freed& freed) {
  for (const auto& [at, bytes] : freed) std::memset(at, kSpoiled, bytes);
}

void Add(Queue* queue, std::function<void()> work) {
  queue->todo.push_back(std::move(work));
  ++queue->added;
}

void AddWait(Queue* queue, Point point) {
  if (point.queue != queue && !Done(point))
    Add(queue, [point] { RunTo(point); });
}

// Runs a random number of items of random queues.
void Stir() {
  for (size_t i = 0; i < queues.size(); ++i) {
    Queue* const queue = queues[i];
    const uint64_t left = queue->added - queue->done;
    if (left > 0 && order().Coin(4))
      RunTo({queue, queue->done + order().random() % left + 1});
  }
}

}  // namespace

bool Done(Point point) {
  const Guard guard(lock);
  return point.queue == nullptr || point.queue->done >= point.number;
}

void RunTo(Point point) {
  const Guard guard(lock);
  while (!Done(point)) {
    const auto work = std::move(point.queue->todo.front());
    point.queue->todo.pop_front();
    work();
    ++point.queue->done;
  }
}

bool AtOnce() { return order().moment == Moment::kEarliest; }

cudaStream_t MakeStream(bool blocking) {
  const Guard guard(lock);
  return reinterpret_cast<cudaStream_t>(NewQueue(Current(), blocking));
}

cudaStream_t Named(cudaStream_t stream, int device) {
  const Guard guard(lock);
  const bool is_default = reinterpret_cast<size_t>(stream) <= 2;
  return is_default ? reinterpret_cast<cudaStream_t>(Legacy(device)) : stream;
}

Point Note(cudaStream_t stream, std::function<void()> work) {
  const Guard guard(lock);
  if (Captures(stream)) {
    Record(std::move(work));
    return {};
  }
  Queue* const queue = Of(stream);
  Queue* const zero = Legacy(queue->device);
  if (queue == zero) {
    for (Queue* const other : queues)
      if (other->blocking && other->device == queue->device)
        AddWait(queue, {other, other->added});
  } else if (queue->blocking) {
    AddWait(queue, {zero, zero->added});
  }
  Add(queue, std::move(work));
  const Point point{queue, queue->added};
  if (AtOnce()) {
    RunTo(point);
  } else if (order().moment == Moment::kRandom) {
    Stir();
  }
  return point;
}

Point Submit(cudaStream_t stream, std::function<void()> work) {
  const Guard guard(lock);
  auto& freed = Captures(stream) ? freed_in_graph : Of(stream)->freed;
  return Note(stream,
              [freed = std::exchange(freed, {}), work = std::move(work)] {
                SpoilNow(freed);
                work();
              });
}

void Wait(cudaStream_t stream, Point point) {
  if (!Done(point)) Note(stream, [point] { RunTo(point); });
}

Point End(cudaStream_t stream) {
  const Guard guard(lock);
  return {Of(stream), Of(stream)->added};
}

bool DoneWhenAsked(Point point, int& asked) {
  const Guard guard(lock);
  if (Done(point)) return true;
  const bool runs = order().moment == Moment::kRandom ? order().Coin(2)
                                                      : ++asked > kQuestions;
  if (runs) RunTo(point);
  return runs;
}

void Finish(cudaStream_t stream) { RunTo(End(stream)); }

void FinishDevice(int device) {
  const Guard guard(lock);
  for (size_t i = 0; i < queues.size(); ++i)
    if (queues[i]->device == device) RunTo({queues[i], queues[i]->added});
}

void Settle(cudaStream_t stream) {
  Submit(stream, [] {});
  Finish(stream);
}

void SettleAll() {
  const Guard guard(lock);
  for (int device = 0; device < Devices(); ++device) FinishDevice(device);
  for (Queue* const queue : queues) SpoilNow(std::exchange(queue->freed, {}));
}

void SpoilDevice(cudaStream_t stream, void* at, size_t bytes, bool of_graphs) {
  const Guard guard(lock);
  if (of_graphs && !Captures(stream)) return;
  auto& freed = of_graphs ? freed_in_graph : Of(stream)->freed;
  freed.emplace_back(static_cast<char*>(at), bytes);
}

void KeepUnspoiled(void* at, size_t bytes) {
  const Guard guard(lock);
  char* const begin = static_cast<char*>(at);
  char* const end = begin + bytes;
  for (Queue* const queue : queues)
    for (const auto& [from, size] : std::exchange(queue->freed, {})) {
      char* const until = from + size;
      if (from < begin)
        queue->freed.emplace_back(from, std::min(until, begin) - from);
      if (until > end) {
        char* const rest = std::max(from, end);
        queue->freed.emplace_back(rest, until - rest);
      }
    }
}

void SpoilHost(const std::vector<cudaStream_t>& streams, void* at,
               size_t bytes) {
  const auto fill = [at, bytes] { std::memset(at, kSpoiled, bytes); };
  if (streams.empty()) return fill();
  for (const cudaStream_t stream : streams) Wait(streams.back(), End(stream));
  Note(streams.back(), fill);
}

}  // namespace fakegpu
