// SPDX-License-Identifier: Apache-2.0
//
// The probe: counts the bytes that PyTorch's CPU allocator has handed out.
//
// It wraps the allocator that c10 has registered for the CPU. A block that is
// allocated while the probe is installed carries the probe's deleter, so its
// free is counted whenever and on whichever thread it happens. A block from
// before keeps the old deleter, and its free is not counted. Bytes are those
// requested, without the allocator's rounding.
//
//   allocate(n) --> inner allocator --> block in `sizes_`, live += n
//   Free(p)     --> live -= sizes_[p] --> inner allocator's own deleter
//
// Why not the hook of torch.profiler (MemoryReportingInfoBase)? It is local to
// a thread, so a tensor freed by another thread would count as alive forever.
// And while the hook is taken, a job that uses torch.profiler itself fails with
// "Profiler is already enabled on this thread".
//
// Fork: another thread may hold the lock or be modifying the table at that
// moment. A forked child therefore starts with a new, empty table and counts
// nothing until it installs the probe itself.
//
// Late frees: threads of a collective library (gloo) hold the tensors of a
// collective for some moments after it is over, longer on a loaded machine. A
// step whose peak is known may therefore be told to wait: an allocation that
// would pass the limit first gives other threads time to free.
//
// The library is never unloaded: blocks that outlive the probe still call its
// deleter, and storages made meanwhile still refer to its allocator.
#include <c10/core/Allocator.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

// Of the interpreter that has loaded the probe; null in a process without one.
extern "C" {
__attribute__((weak)) int PyGILState_Check();
__attribute__((weak)) void* PyEval_SaveThread();
__attribute__((weak)) void PyEval_RestoreThread(void*);
}

namespace {

constexpr c10::DeviceType kCpu = c10::DeviceType::CPU;

// reprise_alloc of the agent's C ABI.
using AllocRecord = void (*)(uint64_t ptr, int64_t bytes, int32_t device,
                             uint64_t stream, uint32_t what, uint64_t ts);
constexpr uint32_t kAlloc = 0, kFree = 1, kBaseline = 7;
constexpr int32_t kHost = -1;

// Live blocks and their bytes. A single lock covers them and the records, so
// that the record of a free cannot be overtaken by the next allocation at the
// same address.
struct Books {
  std::mutex mutex;
  std::unordered_map<void*, int64_t> sizes;
  int64_t live = 0;
  int64_t peak = 0;
  AllocRecord record = nullptr;

  void Write(void* p, int64_t bytes, uint32_t what) const {
    if (record == nullptr) return;
    record(reinterpret_cast<uint64_t>(p), bytes, kHost, 0, what, 0);
  }
};

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

// Lets other Python threads run: one that frees a tensor may need the
// interpreter for it.
class WithoutInterpreter {
 public:
  WithoutInterpreter() {
    if (PyGILState_Check != nullptr && PyEval_SaveThread != nullptr &&
        PyEval_RestoreThread != nullptr && PyGILState_Check() != 0)
      state_ = PyEval_SaveThread();
  }
  ~WithoutInterpreter() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  void* state_ = nullptr;
};

// How far allocations of one thread wait for frees of others. Only that thread
// uses it, so nothing is locked.
struct Patience {
  int64_t most_live = -1;  // bytes; negative: do not wait
  int64_t left_ns = 0;
  int64_t ended = 0;  // waits that found no room in time
};
thread_local Patience patience;

class Probe final : public c10::Allocator {
 public:
  // Returns 0 if the probe is installed, 1 if the current allocator keeps state
  // in its pointers' contexts, which wrapping would lose, and 2 if the probe
  // could not be registered.
  int Install() {
    c10::Allocator* const current = c10::GetAllocator(kCpu);
    if (current != this) {
      // Another allocator was registered on top of the probe. It may already
      // call the probe, and a block must not be counted twice.
      if (inner_ != nullptr && current != inner_) return 2;
      if (!IsPlain(current)) return 1;
      inner_ = current;
      if (!Register(this)) return 2;
    }
    counting_.store(true);
    return 0;
  }

  // Unregisters the probe. Blocks and storages that outlive this are still
  // counted.
  void Uninstall() {
    if (Installed()) Register(inner_);
  }

  bool Installed() const { return c10::GetAllocator(kCpu) == this; }

  c10::DataPtr allocate(size_t n) override {
    if (patience.most_live >= 0 && counting_.load()) WaitForRoom(n);
    c10::DataPtr block = inner_->allocate(n);
    void* const p = block.get();
    if (p == nullptr || !counting_.load()) return block;
    const auto bytes = static_cast<int64_t>(n);
    {
      const std::lock_guard<std::mutex> lock(books_->mutex);
      books_->sizes[p] = bytes;
      books_->live += bytes;
      if (books_->live > books_->peak) books_->peak = books_->live;
      books_->Write(p, bytes, kAlloc);
    }
    block.release_context();
    return {p, p, &Free, c10::Device(kCpu)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Free; }

  void copy_data(void* to, const void* from, size_t n) const override {
    inner_->copy_data(to, from, n);
  }

  int64_t Live() {
    const std::lock_guard<std::mutex> lock(books_->mutex);
    return books_->live;
  }
  int64_t Peak() {
    const std::lock_guard<std::mutex> lock(books_->mutex);
    return books_->peak;
  }
  void ResetPeak() {
    const std::lock_guard<std::mutex> lock(books_->mutex);
    books_->peak = books_->live;
  }

  // Writes address and bytes of the `most` largest blocks to `out`; returns how
  // many. Allocates only one list, and not while it holds the lock.
  int64_t Blocks(uint64_t* out, int64_t most) {
    std::vector<std::pair<int64_t, uint64_t>> blocks;
    for (size_t room = 1024;; room *= 2) {
      blocks.reserve(room);
      const std::lock_guard<std::mutex> lock(books_->mutex);
      if (books_->sizes.size() > blocks.capacity()) {
        room = books_->sizes.size();
        continue;
      }
      for (const auto& [p, bytes] : books_->sizes)
        blocks.emplace_back(bytes, reinterpret_cast<uint64_t>(p));
      break;
    }
    std::sort(blocks.rbegin(), blocks.rend());
    const auto count = std::min<int64_t>(most, blocks.size());
    for (int64_t i = 0; i < count; ++i) {
      out[2 * i] = blocks[i].second;
      out[2 * i + 1] = static_cast<uint64_t>(blocks[i].first);
    }
    return count;
  }

  // Starts writing records. The first one is the baseline: the bytes alive
  // before the first ALLOC. Nothing can be recorded in between.
  void EventsBegin(AllocRecord record, int64_t baseline) {
    const std::lock_guard<std::mutex> lock(books_->mutex);
    books_->record = record;
    books_->Write(nullptr, baseline + books_->live, kBaseline);
  }
  void EventsEnd() {
    const std::lock_guard<std::mutex> lock(books_->mutex);
    books_->record = nullptr;
  }

  // The old table is abandoned: another thread may have been changing it.
  void AfterForkInChild() {
    counting_.store(false);
    books_ = new Books;
  }

 private:
  static void Free(void* p);

  // Returns when `n` more bytes stay within the limit of this thread, or when
  // its time is used up.
  void WaitForRoom(size_t n) {
    const int64_t most = patience.most_live - static_cast<int64_t>(n);
    if (Live() <= most) return;
    const WithoutInterpreter others_run;
    const int64_t end = NowNs() + patience.left_ns;
    while (Live() > most) {
      patience.left_ns = end - NowNs();
      if (patience.left_ns <= 0) {
        patience.most_live = -1;
        ++patience.ended;
        return;
      }
      constexpr timespec kShort = {0, 50 * 1000};
      nanosleep(&kShort, nullptr);
    }
  }

  // Must run before the block is freed: another thread may get the same address
  // at once.
  void Forget(void* p) {
    if (!counting_.load()) return;
    const std::lock_guard<std::mutex> lock(books_->mutex);
    const auto it = books_->sizes.find(p);
    if (it == books_->sizes.end()) return;
    books_->live -= it->second;
    books_->Write(p, -it->second, kFree);
    books_->sizes.erase(it);
  }

  // Returns whether the allocator can be wrapped: only if its pointers are
  // their own contexts and are all freed by its one deleter.
  static bool IsPlain(c10::Allocator* allocator) {
    if (allocator == nullptr || allocator->raw_deleter() == nullptr)
      return false;
    const c10::DataPtr block = allocator->allocate(64);
    return block.get() == block.get_context() &&
           block.get_deleter() == allocator->raw_deleter();
  }

  // Uses the lowest priority that works, so that others can still register.
  static bool Register(c10::Allocator* allocator) {
    for (int priority = 0; priority <= 255; ++priority) {
      c10::SetAllocator(kCpu, allocator, static_cast<uint8_t>(priority));
      if (c10::GetAllocator(kCpu) == allocator) return true;
    }
    return false;
  }

  c10::Allocator* inner_ = nullptr;
  std::atomic<bool> counting_{false};
  Books* books_ = new Books;
};

// Never destroyed: blocks are freed even after static destructors have run.
Probe& TheProbe() {
  static Probe* const probe = [] {
    auto* made = new Probe;
    pthread_atfork(nullptr, nullptr, [] { TheProbe().AfterForkInChild(); });
    return made;
  }();
  return *probe;
}

void Probe::Free(void* p) {
  Probe& probe = TheProbe();
  probe.Forget(p);
  probe.inner_->raw_deallocate(p);
}

}  // namespace

#define REPRISE_PROBE_API extern "C" __attribute__((visibility("default")))

REPRISE_PROBE_API int reprise_probe_install() { return TheProbe().Install(); }
REPRISE_PROBE_API void reprise_probe_uninstall() { TheProbe().Uninstall(); }
REPRISE_PROBE_API int reprise_probe_installed() {
  return TheProbe().Installed() ? 1 : 0;
}
REPRISE_PROBE_API int64_t reprise_probe_live() { return TheProbe().Live(); }
REPRISE_PROBE_API int64_t reprise_probe_peak() { return TheProbe().Peak(); }
REPRISE_PROBE_API void reprise_probe_reset_peak() { TheProbe().ResetPeak(); }
// Allocations of the calling thread that would make more than `most_live` bytes
// alive first wait for other threads to free, for `ns` in total; negative: they
// do not wait. Returns how many waits have ended without room since the last
// call.
REPRISE_PROBE_API int64_t reprise_probe_wait_above(int64_t most_live,
                                                   int64_t ns) {
  const int64_t ended = patience.ended;
  patience = {.most_live = most_live, .left_ns = ns, .ended = 0};
  return ended;
}
REPRISE_PROBE_API int64_t reprise_probe_blocks(void* out, int64_t most) {
  try {
    return TheProbe().Blocks(static_cast<uint64_t*>(out), most);
  } catch (const std::bad_alloc&) {
    return 0;  // called when memory has run out
  }
}
REPRISE_PROBE_API void reprise_probe_events_begin(void* record,
                                                  int64_t baseline) {
  TheProbe().EventsBegin(reinterpret_cast<AllocRecord>(record), baseline);
}
REPRISE_PROBE_API void reprise_probe_events_end() { TheProbe().EventsEnd(); }
