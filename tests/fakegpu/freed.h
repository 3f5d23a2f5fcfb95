// SPDX-License-Identifier: Apache-2.0
//
// Spoils memory that torch's caching allocators take back, so that whoever reads
// it still is shown wrong bytes: a device block before the next work of its
// stream, a pinned block once the copies that torch knows of are done, before
// the allocator can give it to anyone else.
#ifndef REPRISE_TESTS_FAKEGPU_FREED_H_
#define REPRISE_TESTS_FAKEGPU_FREED_H_

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime.h"

namespace fakegpu {

// Once torch has its allocators of devices: from the first kernel on.
// cudaMallocAsync's has no blocks, and unmaps what is freed.
inline void watch_device_blocks() {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  static std::once_flag once;
  std::call_once(once, [] {
    auto* const allocator = c10::cuda::CUDACachingAllocator::get();
    if (allocator->name() != "native") return;
    allocator->attachAllocatorTraceTracker([](const Entry& entry) {
      const auto stream =
          Named(static_cast<cudaStream_t>(entry.stream_), entry.device_);
      auto* const at = reinterpret_cast<void*>(entry.addr_);
      const bool of_graphs = entry.mempool_ != c10::MempoolId_t{0, 0};
      if (entry.action_ == Entry::FREE_COMPLETED)
        SpoilDevice(stream, at, entry.size_, of_graphs);
    });
  });
}

// Torch's allocator of pinned memory, with a look at what is freed.
class PinnedBlocks : public at::HostAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    at::DataPtr data = inner_->allocate(bytes);
    if (data.get_context() == nullptr) return data;
    const std::lock_guard<std::mutex> guard(lock_);
    blocks_[data.get_context()] = {data.get(), bytes, data.get_deleter(), {}};
    data.compare_exchange_deleter(data.get_deleter(), &Freed);
    return data;
  }
  bool record_event(void* at, void* context, c10::Stream stream) override {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      if (const auto found = blocks_.find(context); found != blocks_.end())
        found->second.streams.push_back(Named(
            c10::cuda::CUDAStream(stream).stream(), stream.device_index()));
    }
    return inner_->record_event(at, context, stream);
  }
  at::DeleterFnPtr raw_deleter() const override {
    return inner_->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }
  void empty_cache() override { inner_->empty_cache(); }
  at::HostStats get_stats() override { return inner_->get_stats(); }
  void reset_accumulated_stats() override { inner_->reset_accumulated_stats(); }
  void reset_peak_stats() override { inner_->reset_peak_stats(); }
  void begin_allocate_to_pool(
      c10::MempoolId_t pool, std::function<bool(c10::Stream)> filter) override {
    inner_->begin_allocate_to_pool(pool, std::move(filter));
  }
  void end_allocate_to_pool(c10::MempoolId_t pool) override {
    inner_->end_allocate_to_pool(pool);
  }
  void release_pool(c10::MempoolId_t pool) override {
    inner_->release_pool(pool);
  }

 private:
  struct Block {
    void* at;
    size_t bytes;
    at::DeleterFnPtr gives_back;
    std::vector<cudaStream_t> streams;  // with copies from or to it
  };
  static void Freed(void* context) {
    Block block;
    {
      const std::lock_guard<std::mutex> guard(lock_);
      block = std::move(blocks_.extract(context).mapped());
    }
    SpoilHost(block.streams, block.at, block.bytes);
    block.gives_back(context);
  }

  at::HostAllocator* const inner_ = at::getHostAllocator(at::kCUDA);
  inline static std::mutex lock_;
  inline static std::unordered_map<void*, Block> blocks_;
};

inline void watch_pinned_blocks() {
  at::setHostAllocator(at::kCUDA, new PinnedBlocks);
}

}  // namespace fakegpu

#endif  // REPRISE_TESTS_FAKEGPU_FREED_H_
