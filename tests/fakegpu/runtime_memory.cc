// SPDX-License-Identifier: Apache-2.0
//
// Memory of the fake CUDA runtime: host memory with a limit per device. An
// allocation beyond the limit fails with cudaErrorMemoryAllocation, as on a
// GPU. Sizes are rounded up to 2 MiB.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "runtime.h"

namespace fakegpu {

namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kPoolUnit = 512;  // a stream-ordered pool divides its pages
constexpr int kMostDevices = 16;

enum class Kind { kDevice, kPool, kHost };
struct Block {
  size_t bytes;
  int device;
  Kind kind;
  size_t of_pool;
};

std::mutex lock;
std::map<char*, Block> blocks;
size_t used[kMostDevices];
// Bytes used by each device's stream-ordered pool, and the most so far.
size_t pool_used[kMostDevices], pool_high[kMostDevices];

bool TakeLocked(int device, size_t bytes) {
  if (used[device] + bytes > Memory()) return false;
  used[device] += bytes;
  return true;
}

cudaError_t Take(void** to, size_t bytes, Kind kind) {
  const size_t rounded =
      (std::max<size_t>(bytes, 1) + kPage - 1) & ~(kPage - 1);
  const std::lock_guard<std::mutex> guard(lock);
  const int device = Current();
  if (kind != Kind::kHost && !TakeLocked(device, rounded))
    return Say(cudaErrorMemoryAllocation);
  void* const at = mmap(nullptr, rounded, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return Say(cudaErrorMemoryAllocation);
  const size_t of_pool =
      kind == Kind::kPool ? (bytes + kPoolUnit - 1) / kPoolUnit * kPoolUnit : 0;
  blocks[static_cast<char*>(at)] = {rounded, device, kind, of_pool};
  pool_used[device] += of_pool;
  pool_high[device] = std::max(pool_high[device], pool_used[device]);
  *to = at;
  return cudaSuccess;
}

// Forgets a block, and sets how many bytes are mapped there still.
cudaError_t Forget(void* block, size_t& bytes) {
  const std::lock_guard<std::mutex> guard(lock);
  const auto found = blocks.find(static_cast<char*>(block));
  if (found == blocks.end()) return Say(cudaErrorInvalidValue);
  const Block was = found->second;
  if (was.kind != Kind::kHost) used[was.device] -= was.bytes;
  pool_used[was.device] -= was.of_pool;
  bytes = was.bytes;
  blocks.erase(found);
  return cudaSuccess;
}

// As CUDA does, waits for all that could use the block.
cudaError_t Give(void* block) {
  if (block == nullptr) return cudaSuccess;
  SettleAll();
  size_t bytes = 0;
  const cudaError_t error = Forget(block, bytes);
  if (error == cudaSuccess) munmap(block, bytes);
  return error;
}

bool Pageable(const void* pointer) {
  cudaPointerAttributes found;
  cudaPointerGetAttributes(&found, pointer);
  return found.type == cudaMemoryTypeUnregistered;
}

// A copy from or to host memory that is not pinned is not asynchronous to the
// host: it has read what it copies, or is done, when the call returns.
bool FromPageable(const void* from, cudaMemcpyKind kind) {
  return kind != cudaMemcpyDeviceToHost && kind != cudaMemcpyDeviceToDevice &&
         Pageable(from);
}
bool ToPageable(const void* to, cudaMemcpyKind kind) {
  return kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToDevice &&
         Pageable(to);
}

cudaError_t Copy(void* to, const void* from, size_t bytes, const char* call,
                 cudaMemcpyKind kind, cudaStream_t stream) {
  static const char* const kinds[] = {" H2H", " H2D", " D2H", " D2D", ""};
  Count(std::string(call) + kinds[kind]);
  if (FromPageable(from, kind)) {
    const auto* const begin = static_cast<const char*>(from);
    const auto read = std::make_shared<std::string>(begin, bytes);
    Submit(stream, [=] { std::memcpy(to, read->data(), bytes); });
  } else {
    Submit(stream, [=] { std::memmove(to, from, bytes); });
  }
  if (ToPageable(to, kind)) Finish(stream);
  return cudaSuccess;
}

}  // namespace

size_t Memory() {
  static const char* const text = getenv("FAKEGPU_MEMORY");
  static const size_t bytes =
      text == nullptr ? size_t{8} << 30 : strtoull(text, nullptr, 10);
  return bytes;
}

size_t Used(int device) {
  const std::lock_guard<std::mutex> guard(lock);
  return used[device];
}

}  // namespace fakegpu

using fakegpu::Kind;

// Reserves device memory for driver.cc (expandable segments). Returns 0, or 2
// if it does not fit.
FAKE_API int fakegpu_take(int device, size_t bytes) {
  const std::lock_guard<std::mutex> guard(fakegpu::lock);
  return fakegpu::TakeLocked(device, bytes) ? 0 : 2;
}
FAKE_API void fakegpu_give(int device, size_t bytes) {
  const std::lock_guard<std::mutex> guard(fakegpu::lock);
  fakegpu::used[device] -= bytes;
}

FAKE_API void fakegpu_unmapped(void* at, size_t bytes) {
  fakegpu::KeepUnspoiled(at, bytes);
}

FAKE_API cudaError_t cudaMalloc(void** to, size_t bytes) {
  fakegpu::Count("cudaMalloc");
  return fakegpu::Take(to, bytes, Kind::kDevice);
}
FAKE_API cudaError_t cudaMallocAsync(void** to, size_t bytes, cudaStream_t) {
  return fakegpu::Take(to, bytes, Kind::kPool);
}
FAKE_API cudaError_t cudaHostAlloc(void** to, size_t bytes, unsigned) {
  return fakegpu::Take(to, bytes, Kind::kHost);
}
FAKE_API cudaError_t cudaFree(void* block) { return fakegpu::Give(block); }
// Its bytes count as free at once, as a later allocation of the stream may have
// them; an allocation of another stream is never given the same address.
FAKE_API cudaError_t cudaFreeAsync(void* block, cudaStream_t stream) {
  if (block == nullptr) return cudaSuccess;
  size_t bytes = 0;
  const cudaError_t error = fakegpu::Forget(block, bytes);
  if (error == cudaSuccess)
    fakegpu::Note(stream, [=] { munmap(block, bytes); });
  return error;
}
FAKE_API cudaError_t cudaFreeHost(void* block) { return fakegpu::Give(block); }
FAKE_API cudaError_t cudaHostRegister(void* at, size_t bytes, unsigned) {
  const std::lock_guard<std::mutex> guard(fakegpu::lock);
  fakegpu::blocks[static_cast<char*>(at)] = {bytes, fakegpu::Current(),
                                             Kind::kHost, 0};
  return cudaSuccess;
}
FAKE_API cudaError_t cudaHostUnregister(void* at) {
  fakegpu::SettleAll();
  size_t bytes = 0;
  return fakegpu::Forget(at, bytes);
}
// Returns the bytes of pinned host memory in use.
FAKE_API size_t fakegpu_pinned() {
  const std::lock_guard<std::mutex> guard(fakegpu::lock);
  size_t sum = 0;
  for (const auto& [at, block] : fakegpu::blocks)
    if (block.kind == Kind::kHost) sum += block.bytes;
  return sum;
}
FAKE_API cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  *total = fakegpu::Memory();
  *left = *total - fakegpu::Used(fakegpu::Current());
  return cudaSuccess;
}
FAKE_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* to,
                                              const void* pointer) {
  std::memset(to, 0, sizeof *to);
  to->type = cudaMemoryTypeUnregistered;
  to->device = -1;
  to->hostPointer = const_cast<void*>(pointer);
  const std::lock_guard<std::mutex> guard(fakegpu::lock);
  char* const at = static_cast<char*>(const_cast<void*>(pointer));
  auto found = fakegpu::blocks.upper_bound(at);
  if (found == fakegpu::blocks.begin()) return cudaSuccess;
  --found;
  if (at >= found->first + found->second.bytes) return cudaSuccess;
  const bool host = found->second.kind == Kind::kHost;
  to->type = host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  to->device = found->second.device;
  to->devicePointer = at;
  to->hostPointer = host ? at : nullptr;
  return cudaSuccess;
}

FAKE_API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                                cudaMemcpyKind kind) {
  fakegpu::Copy(to, from, bytes, "cudaMemcpy", kind, nullptr);
  fakegpu::Finish(nullptr);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                     cudaMemcpyKind kind, cudaStream_t stream) {
  return fakegpu::Copy(to, from, bytes, "cudaMemcpyAsync", kind, stream);
}
FAKE_API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int,
                                         size_t bytes, cudaStream_t stream) {
  return fakegpu::Copy(to, from, bytes, "cudaMemcpyPeerAsync",
                       cudaMemcpyDeviceToDevice, stream);
}
FAKE_API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch,
                                       const void* from, size_t from_pitch,
                                       size_t width, size_t height,
                                       cudaMemcpyKind kind,
                                       cudaStream_t stream) {
  fakegpu::Submit(stream, [=] {
    for (size_t row = 0; row < height; ++row)
      std::memmove(static_cast<char*>(to) + row * to_pitch,
                   static_cast<const char*>(from) + row * from_pitch, width);
  });
  if (fakegpu::FromPageable(from, kind) || fakegpu::ToPageable(to, kind))
    fakegpu::Finish(stream);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t,
                                        size_t, cudaMemcpyKind) {
  return cudaSuccess;
}
FAKE_API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                                     cudaStream_t stream) {
  fakegpu::Submit(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
FAKE_API cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
FAKE_API cudaError_t cudaGetSymbolAddress(void** to, const void*) {
  static char space[1 << 16];
  *to = space;
  return cudaSuccess;
}

// Each device has one pool; its handle is the device number plus 1.
FAKE_API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* to,
                                                 int device) {
  *to = reinterpret_cast<cudaMemPool_t>(static_cast<size_t>(device) + 1);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool,
                                             cudaMemPoolAttr which, void* to) {
  const auto device = reinterpret_cast<size_t>(pool) - 1;
  const std::lock_guard<std::mutex> guard(fakegpu::lock);
  const bool high = which == cudaMemPoolAttrUsedMemHigh ||
                    which == cudaMemPoolAttrReservedMemHigh;
  *static_cast<unsigned long long*>(to) =
      high ? fakegpu::pool_high[device] : fakegpu::pool_used[device];
  return cudaSuccess;
}
FAKE_API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool,
                                             cudaMemPoolAttr which, void*) {
  const auto device = reinterpret_cast<size_t>(pool) - 1;
  const std::lock_guard<std::mutex> guard(fakegpu::lock);
  if (which == cudaMemPoolAttrUsedMemHigh)
    fakegpu::pool_high[device] = fakegpu::pool_used[device];
  return cudaSuccess;
}
FAKE_API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t,
                                          const cudaMemAccessDesc*, size_t) {
  return cudaSuccess;
}
FAKE_API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return cudaSuccess;
}
