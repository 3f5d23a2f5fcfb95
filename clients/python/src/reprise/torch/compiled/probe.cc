// SPDX-License-Identifier: Apache-2.0
//
// The probe: counts the bytes that PyTorch's CPU allocator has handed out.
//
// It wraps the allocator that c10 has registered for the CPU. Every block
// handed out while the probe is installed carries the probe's deleter, so its
// free is seen whichever thread frees it and whenever; a block from before
// carries the old deleter, and its free is not seen. Bytes are those asked
// for, without the allocator's rounding.
//
//   allocate(n) --> inner allocator --> block in `sizes_`, live += n
//   Free(p)     --> live -= sizes_[p] --> inner allocator's own deleter
//
// Why not the slot of torch.profiler (MemoryReportingInfoBase): it is local to
// a thread, so a tensor freed by another thread stays alive in the books for
// ever, and while it is taken a job that uses torch.profiler itself fails with
// "Profiler is already enabled on this thread".
//
// Fork: another thread may hold the lock or be inside the table at that
// moment, so a forked child starts with new, empty books, and passes
// everything straight through until it installs the probe itself.
//
// The library is never unloaded: blocks that outlive the probe still call its
// deleter, and storages made meanwhile still name its allocator.
#include <c10/core/Allocator.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr c10::DeviceType kCpu = c10::DeviceType::CPU;

// reprise_alloc of the agent's C ABI.
using AllocRecord = void (*)(uint64_t ptr, int64_t bytes, int32_t device,
                             uint64_t stream, uint32_t what, uint64_t ts);
constexpr uint32_t kAlloc = 0, kFree = 1, kBaseline = 7;
constexpr int32_t kHost = -1;

// What is alive. One lock: a record must not be overtaken by the next owner of
// the same address.
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

class Probe final : public c10::Allocator {
 public:
  // 0: installed. 1: the allocator there keeps state of its own in its
  // pointers, so that wrapping it would lose it. 2: it did not take.
  int Install() {
    c10::Allocator* const current = c10::GetAllocator(kCpu);
    if (current != this) {
      // Something else was put on top of us: it may call us already, and a
      // block must not be counted twice.
      if (inner_ != nullptr && current != inner_) return 2;
      if (!IsPlain(current)) return 1;
      inner_ = current;
      if (!Register(this)) return 2;
    }
    counting_.store(true);
    return 0;
  }

  // Blocks and storages that outlive this are still counted.
  void Uninstall() {
    if (Installed()) Register(inner_);
  }

  bool Installed() const { return c10::GetAllocator(kCpu) == this; }

  c10::DataPtr allocate(size_t n) override {
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

  // Writes address and bytes of the `most` largest blocks; returns how many.
  // Nothing of it allocates but one list, and not while the lock is held.
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

  // The first record says what is alive; none can come between it and the
  // first ALLOC.
  void EventsBegin(AllocRecord record, int64_t baseline) {
    const std::lock_guard<std::mutex> lock(books_->mutex);
    books_->record = record;
    books_->Write(nullptr, baseline + books_->live, kBaseline);
  }
  void EventsEnd() {
    const std::lock_guard<std::mutex> lock(books_->mutex);
    books_->record = nullptr;
  }

  // The old books are given up as they are, perhaps locked and half-written.
  void AfterForkInChild() {
    counting_.store(false);
    books_ = new Books;
  }

 private:
  static void Free(void* p);

  // Before the block goes back: another thread may get its address at once.
  void Forget(void* p) {
    if (!counting_.load()) return;
    const std::lock_guard<std::mutex> lock(books_->mutex);
    const auto it = books_->sizes.find(p);
    if (it == books_->sizes.end()) return;
    books_->live -= it->second;
    books_->Write(p, -it->second, kFree);
    books_->sizes.erase(it);
  }

  // Only a pointer that is its own context, freed by the allocator's one
  // deleter, can be handed out again under ours.
  static bool IsPlain(c10::Allocator* allocator) {
    if (allocator == nullptr || allocator->raw_deleter() == nullptr)
      return false;
    const c10::DataPtr block = allocator->allocate(64);
    return block.get() == block.get_context() &&
           block.get_deleter() == allocator->raw_deleter();
  }

  // Takes the lowest priority that works, so that others can still register.
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

// Never destroyed: blocks are freed after static destructors have run.
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
REPRISE_PROBE_API int64_t reprise_probe_blocks(void* out, int64_t most) {
  try {
    return TheProbe().Blocks(static_cast<uint64_t*>(out), most);
  } catch (const std::bad_alloc&) {
    return 0;  // this is asked when memory has run out
  }
}
REPRISE_PROBE_API void reprise_probe_events_begin(void* record,
                                                  int64_t baseline) {
  TheProbe().EventsBegin(reinterpret_cast<AllocRecord>(record), baseline);
}
REPRISE_PROBE_API void reprise_probe_events_end() { TheProbe().EventsEnd(); }
