// CUPTI's binary interface as far as the agent uses it. The declarations are
// our own, so that the agent builds without a CUDA toolkit and reads the
// records of every library from CUDA 11.8 (API 18) on.
//
// A library fills the newest structs it knows, whatever its client was built
// against. So a buffer is walked with the loaded library's own iterator, never
// with a size of ours, and of each record only the prefix below is read. Its
// offsets are the same from 11.8 to 13.0 (Kernel8 to Kernel10, Memcpy5 to
// Memcpy6, Memset4, Memory3 to Memory4, MemoryPool2 to MemoryPool3). Where the
// real headers are available, tests/profiler/cupti_abi_test.cc checks every
// offset.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace reprise::profiler::cupti {

// ---- Result codes that the agent distinguishes ----

constexpr int kSuccess = 0;
constexpr int kMaxLimitReached = 12;  // the iterator's end
constexpr int kNotCompatible = 14;
constexpr int kNotInitialized = 15;
constexpr int kVirtualizedNotSupported = 33;
constexpr int kInsufficientPrivileges = 35;
constexpr int kMultipleSubscribers = 39;
constexpr int kVirtualizedInsufficientPrivileges = 40;
constexpr int kConfidentialComputing = 41;
constexpr int kMultiInstanceGpu = 43;
constexpr int kUnknown = 999;

constexpr uint32_t kOldestApi = 18;            // CUDA 11.8
constexpr uint32_t kMayRefuseBufferApi = 27;   // 12.9; before, NULL may crash
constexpr uint32_t kOverheadDataApi = 130000;  // Overhead3, with its pointer

// ---- Activity kinds ----

enum Kind : uint32_t {
  kMemcpy = 1,
  kMemset = 2,
  kDriver = 4,
  kRuntime = 5,
  kConcurrentKernel = 10,  // KERNEL (3) would serialize them
  kOverhead = 17,
  kMemcpyPeer = 22,
  kSynchronization = 38,
  kExternalCorrelation = 39,
  kMemory2 = 49,
  kMemoryPool = 50,
  kGraphTrace = 51,
};

// Kineto uses CUSTOM0 and CUSTOM1.
constexpr uint32_t kCustom2 = 5;

// ---- Attributes ----

enum Attribute : uint32_t {
  kDeviceBufferSize = 0,       // size_t
  kDeviceBufferPoolLimit = 2,  // size_t
  kZeroedOutBuffer = 5,        // uint8_t
  kPreAllocate = 6,            // size_t
  kPerThreadBuffer = 9,        // uint8_t
};

constexpr uint32_t kThreadIdSystem = 1;

// ---- Records, by offset ----

// The offsets of one kind of record; 0 where a field is absent.
struct TimedLayout {
  uint8_t start, end, device, context, stream, correlation;
  uint8_t bytes;       // of a copy or memset
  uint8_t name;        // of a kernel: const char *
  uint8_t graph_node;  // uint64_t
  uint8_t graph;       // uint32_t
  uint8_t copy_kind;   // uint8_t
};
constexpr TimedLayout kKernelLayout = {16, 24,  40,  44,  48, 92,
                                       0,  104, 144, 156, 0};
constexpr TimedLayout kMemcpyLayout = {16, 24, 32, 36, 40, 44, 8, 0, 64, 72, 4};
constexpr TimedLayout kMemcpyPeerLayout = {16, 24, 32, 36, 40, 60,
                                           8,  0,  72, 80, 4};
constexpr TimedLayout kMemsetLayout = {16, 24, 32, 36, 40, 44, 8, 0, 64, 72, 0};
constexpr TimedLayout kGraphTraceLayout = {8, 16, 24, 32, 36, 4,
                                           0, 0,  0,  28, 0};

namespace external {
constexpr size_t kKind = 4, kId = 8, kCorrelation = 16;
}
namespace api {
constexpr size_t kCbid = 4, kStart = 8, kEnd = 16, kThread = 28,
                 kCorrelation = 32;
}
namespace memory {  // MEMORY2
constexpr size_t kOperation = 4, kMemoryKind = 8, kCorrelation = 12,
                 kAddress = 16, kBytes = 24, kTimestamp = 32, kDevice = 52,
                 kStream = 60;
constexpr uint32_t kAllocation = 1, kRelease = 2;
constexpr uint32_t kPageable = 1, kPinned = 2;  // kinds that are not on a GPU
}  // namespace memory
namespace pool {  // MEMORY_POOL
constexpr size_t kOperation = 4, kCorrelation = 12, kDevice = 20, kAddress = 32,
                 kSize = 40, kTimestamp = 56;
constexpr uint32_t kCreated = 1, kDestroyed = 2, kTrimmed = 3;
}  // namespace pool
namespace overhead {  // Overhead3
constexpr size_t kStart = 24, kEnd = 32, kData = 48;
}

// Returns the field of type T at an offset of a record.
template <typename T>
T Field(const uint8_t *record, size_t offset) {
  T value;
  memcpy(&value, record + offset, sizeof value);
  return value;
}

// ---- Functions ----

using BufferRequested = void (*)(uint8_t **buffer, size_t *size,
                                 size_t *max_records);
using BufferCompleted = void (*)(void *context, uint32_t stream,
                                 uint8_t *buffer, size_t size, size_t valid);
using Callback = void (*)(void *userdata, uint32_t domain, uint32_t cbid,
                          const void *data);
using Timestamp = uint64_t (*)();

// Of cuptiSubscribe_v2 (13.0).
struct SubscriberParams {
  size_t struct_size;
  const char *name;
  char *holder;
  size_t holder_bytes;
};
constexpr size_t kHolderBytes = 64;

// Each member is a symbol of libcupti. The first kNeededFunctions are required;
// a missing one of the others only means a missing capability.
struct Functions {
  int (*GetVersion)(uint32_t *version);
  int (*Subscribe)(void **subscriber, Callback callback, void *userdata);
  int (*Unsubscribe)(void *subscriber);
  int (*ActivityRegisterCallbacks)(BufferRequested, BufferCompleted);
  int (*ActivityEnable)(uint32_t kind);
  int (*ActivityDisable)(uint32_t kind);
  int (*ActivityFlushAll)(uint32_t flag);
  int (*ActivityGetNextRecord)(uint8_t *buffer, size_t valid, uint8_t **record);

  int (*ActivityGetNumDroppedRecords)(void *context, uint32_t stream,
                                      size_t *dropped);
  int (*ActivityGetAttribute)(uint32_t attribute, size_t *size, void *value);
  int (*ActivitySetAttribute)(uint32_t attribute, size_t *size, void *value);
  int (*ActivityPushExternalCorrelationId)(uint32_t kind, uint64_t id);
  int (*ActivityPopExternalCorrelationId)(uint32_t kind, uint64_t *last);
  int (*ActivityRegisterTimestampCallback)(Timestamp);
  int (*ActivityEnableRuntimeApi)(uint32_t cbid, uint8_t enable);
  int (*ActivityEnableDriverApi)(uint32_t cbid, uint8_t enable);
  int (*GetThreadIdType)(uint32_t *type);
  int (*SetThreadIdType)(uint32_t type);
  int (*Subscribe_v2)(void **subscriber, Callback callback, void *userdata,
                      SubscriberParams *params);
};
constexpr size_t kNeededFunctions = 8;

}  // namespace reprise::profiler::cupti
