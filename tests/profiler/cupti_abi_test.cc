// Compares profiler/cupti_abi.h with NVIDIA's own headers, from CUDA 11.8 on,
// and runs our decoder behind the real library's iterator, which walks any
// memory without a driver. Built only if the toolkit is installed; otherwise
// the test is skipped.
//
// A header declares the structs of its library's version and of older ones;
// CMake defines REPRISE_CUPTI_HAS_x for each struct x that it finds. A library
// fills, and walks, the newest of each.
#include "profiler/cupti_abi.h"

#include <cupti.h>
#if __has_include(<cupti_activity_deprecated.h>)
#include <cupti_activity_deprecated.h>
#endif
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "profiler/cupti_decode.h"

namespace reprise::profiler {
namespace {

#define SAME(layout, field, type, member) \
  static_assert((layout).field == offsetof(type, member), #type "." #member)

#define SAME_KERNEL(type)                                       \
  SAME(cupti::kKernelLayout, start, type, start);               \
  SAME(cupti::kKernelLayout, end, type, end);                   \
  SAME(cupti::kKernelLayout, device, type, deviceId);           \
  SAME(cupti::kKernelLayout, context, type, contextId);         \
  SAME(cupti::kKernelLayout, stream, type, streamId);           \
  SAME(cupti::kKernelLayout, correlation, type, correlationId); \
  SAME(cupti::kKernelLayout, name, type, name);                 \
  SAME(cupti::kKernelLayout, graph_node, type, graphNodeId);    \
  SAME(cupti::kKernelLayout, graph, type, graphId)

// The records of 11.8, 12.0 and 13.0.
SAME_KERNEL(CUpti_ActivityKernel8);
static_assert(sizeof(CUpti_ActivityKernel8) == 200);
#ifdef REPRISE_CUPTI_HAS_Kernel9
SAME_KERNEL(CUpti_ActivityKernel9);
static_assert(sizeof(CUpti_ActivityKernel9) == 208);
#endif
#ifdef REPRISE_CUPTI_HAS_Kernel10
SAME_KERNEL(CUpti_ActivityKernel10);
static_assert(sizeof(CUpti_ActivityKernel10) == 216);
using NewestKernel = CUpti_ActivityKernel10;
#elif defined(REPRISE_CUPTI_HAS_Kernel9)
using NewestKernel = CUpti_ActivityKernel9;
#else
using NewestKernel = CUpti_ActivityKernel8;
#endif

#define SAME_COPY(layout, type)                   \
  SAME(layout, start, type, start);               \
  SAME(layout, end, type, end);                   \
  SAME(layout, device, type, deviceId);           \
  SAME(layout, context, type, contextId);         \
  SAME(layout, stream, type, streamId);           \
  SAME(layout, correlation, type, correlationId); \
  SAME(layout, bytes, type, bytes);               \
  SAME(layout, graph_node, type, graphNodeId);    \
  SAME(layout, graph, type, graphId)

SAME_COPY(cupti::kMemcpyLayout, CUpti_ActivityMemcpy5);
SAME(cupti::kMemcpyLayout, copy_kind, CUpti_ActivityMemcpy5, copyKind);
#ifdef REPRISE_CUPTI_HAS_Memcpy6
SAME_COPY(cupti::kMemcpyLayout, CUpti_ActivityMemcpy6);
SAME(cupti::kMemcpyLayout, copy_kind, CUpti_ActivityMemcpy6, copyKind);
using NewestMemcpy = CUpti_ActivityMemcpy6;
#else
using NewestMemcpy = CUpti_ActivityMemcpy5;
#endif
SAME_COPY(cupti::kMemcpyPeerLayout, CUpti_ActivityMemcpyPtoP4);
SAME(cupti::kMemcpyPeerLayout, copy_kind, CUpti_ActivityMemcpyPtoP4, copyKind);
SAME_COPY(cupti::kMemsetLayout, CUpti_ActivityMemset4);

#define SAME_GRAPH(type)                                    \
  SAME(cupti::kGraphTraceLayout, start, type, start);       \
  SAME(cupti::kGraphTraceLayout, end, type, end);           \
  SAME(cupti::kGraphTraceLayout, device, type, deviceId);   \
  SAME(cupti::kGraphTraceLayout, graph, type, graphId);     \
  SAME(cupti::kGraphTraceLayout, context, type, contextId); \
  SAME(cupti::kGraphTraceLayout, stream, type, streamId);   \
  SAME(cupti::kGraphTraceLayout, correlation, type, correlationId)
SAME_GRAPH(CUpti_ActivityGraphTrace);
#ifdef REPRISE_CUPTI_HAS_GraphTrace2
SAME_GRAPH(CUpti_ActivityGraphTrace2);
#endif

#define AT(constant, type, member) \
  static_assert((constant) == offsetof(type, member), #type "." #member)

AT(cupti::external::kKind, CUpti_ActivityExternalCorrelation, externalKind);
AT(cupti::external::kId, CUpti_ActivityExternalCorrelation, externalId);
AT(cupti::external::kCorrelation, CUpti_ActivityExternalCorrelation,
   correlationId);
AT(cupti::api::kCbid, CUpti_ActivityAPI, cbid);
AT(cupti::api::kStart, CUpti_ActivityAPI, start);
AT(cupti::api::kEnd, CUpti_ActivityAPI, end);
AT(cupti::api::kThread, CUpti_ActivityAPI, threadId);
AT(cupti::api::kCorrelation, CUpti_ActivityAPI, correlationId);

#define SAME_MEMORY(type)                                   \
  AT(cupti::memory::kOperation, type, memoryOperationType); \
  AT(cupti::memory::kMemoryKind, type, memoryKind);         \
  AT(cupti::memory::kCorrelation, type, correlationId);     \
  AT(cupti::memory::kAddress, type, address);               \
  AT(cupti::memory::kBytes, type, bytes);                   \
  AT(cupti::memory::kTimestamp, type, timestamp);           \
  AT(cupti::memory::kDevice, type, deviceId);               \
  AT(cupti::memory::kStream, type, streamId)
SAME_MEMORY(CUpti_ActivityMemory3);
#ifdef REPRISE_CUPTI_HAS_Memory4
SAME_MEMORY(CUpti_ActivityMemory4);
using NewestMemory = CUpti_ActivityMemory4;
#else
using NewestMemory = CUpti_ActivityMemory3;
#endif

#define SAME_POOL(type)                                       \
  AT(cupti::pool::kOperation, type, memoryPoolOperationType); \
  AT(cupti::pool::kCorrelation, type, correlationId);         \
  AT(cupti::pool::kDevice, type, deviceId);                   \
  AT(cupti::pool::kAddress, type, address);                   \
  AT(cupti::pool::kSize, type, size);                         \
  AT(cupti::pool::kTimestamp, type, timestamp)
SAME_POOL(CUpti_ActivityMemoryPool2);
#ifdef REPRISE_CUPTI_HAS_MemoryPool3
SAME_POOL(CUpti_ActivityMemoryPool3);
using NewestPool = CUpti_ActivityMemoryPool3;
#else
using NewestPool = CUpti_ActivityMemoryPool2;
#endif

#ifdef REPRISE_CUPTI_HAS_Overhead3
AT(cupti::overhead::kStart, CUpti_ActivityOverhead3, start);
AT(cupti::overhead::kEnd, CUpti_ActivityOverhead3, end);
AT(cupti::overhead::kData, CUpti_ActivityOverhead3, overheadData);
using NewestOverhead = CUpti_ActivityOverhead3;
#endif
#ifdef REPRISE_CUPTI_HAS_Synchronization2
using NewestSynchronization = CUpti_ActivitySynchronization2;
#else
using NewestSynchronization = CUpti_ActivitySynchronization;
#endif

#define VALUE(ours, theirs) \
  static_assert(static_cast<uint32_t>(ours) == static_cast<uint32_t>(theirs))
VALUE(cupti::kMemcpy, CUPTI_ACTIVITY_KIND_MEMCPY);
VALUE(cupti::kMemset, CUPTI_ACTIVITY_KIND_MEMSET);
VALUE(cupti::kDriver, CUPTI_ACTIVITY_KIND_DRIVER);
VALUE(cupti::kRuntime, CUPTI_ACTIVITY_KIND_RUNTIME);
VALUE(cupti::kConcurrentKernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
VALUE(cupti::kOverhead, CUPTI_ACTIVITY_KIND_OVERHEAD);
VALUE(cupti::kMemcpyPeer, CUPTI_ACTIVITY_KIND_MEMCPY2);
VALUE(cupti::kSynchronization, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
VALUE(cupti::kExternalCorrelation, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
VALUE(cupti::kMemory2, CUPTI_ACTIVITY_KIND_MEMORY2);
VALUE(cupti::kMemoryPool, CUPTI_ACTIVITY_KIND_MEMORY_POOL);
VALUE(cupti::kGraphTrace, CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
VALUE(cupti::kCustom2, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2);
VALUE(cupti::kDeviceBufferSize, CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE);
VALUE(cupti::kDeviceBufferPoolLimit,
      CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT);
VALUE(cupti::kZeroedOutBuffer, CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER);
VALUE(cupti::kPreAllocate,
      CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE);
#if CUDA_VERSION >= 12080  // CUDA 12.1 does not have it
VALUE(cupti::kPerThreadBuffer, CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER);
#endif
VALUE(cupti::kThreadIdSystem, CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
VALUE(cupti::kMaxLimitReached, CUPTI_ERROR_MAX_LIMIT_REACHED);
VALUE(cupti::kNotCompatible, CUPTI_ERROR_NOT_COMPATIBLE);
VALUE(cupti::kNotInitialized, CUPTI_ERROR_NOT_INITIALIZED);
VALUE(cupti::kInsufficientPrivileges, CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
VALUE(cupti::kMultipleSubscribers,
      CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
VALUE(cupti::kUnknown, CUPTI_ERROR_UNKNOWN);
#ifdef CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN  // cuptiSubscribe_v2, from 13.0 on
static_assert(sizeof(cupti::SubscriberParams) ==
              sizeof(CUpti_SubscriberParams));
static_assert(offsetof(cupti::SubscriberParams, holder) ==
              offsetof(CUpti_SubscriberParams, oldSubscriberName));
static_assert(cupti::kHolderBytes >= CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN);
#endif
VALUE(cupti::memory::kPinned, CUPTI_ACTIVITY_MEMORY_KIND_PINNED);
VALUE(cupti::memory::kRelease, CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE);
VALUE(cupti::pool::kDestroyed,
      CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_DESTROYED);

// ---- The real iterator over buffers of the real structs ----

class CuptiAbiTest : public ::testing::Test {
 protected:
  using Next = CUptiResult (*)(uint8_t*, size_t, CUpti_Activity**);

  static void* Library() {
    static void* library = dlopen(REPRISE_REAL_CUPTI, RTLD_NOW | RTLD_LOCAL);
    return library;
  }

  template <typename T>
  T* Append(CUpti_ActivityKind kind) {
    const size_t at = used_;
    used_ += sizeof(T);
    T* record = reinterpret_cast<T*>(buffer_.data() + at);
    memset(static_cast<void*>(record), 0, sizeof *record);
    record->kind = kind;
    return record;
  }

  std::vector<reprise_slot> Walk() {
    const auto next =
        reinterpret_cast<Next>(dlsym(Library(), "cuptiActivityGetNextRecord"));
    EXPECT_NE(next, nullptr);
    const DecodeContext context = {&decoder_, &names_, 7,
                                   REPRISE_CLOCK_MONOTONIC, true};
    std::vector<reprise_slot> slots;
    CUpti_Activity* record = nullptr;
    CUptiResult result = CUPTI_SUCCESS;
    while ((result = next(buffer_.data(), used_, &record)) == CUPTI_SUCCESS) {
      reprise_slot slot;
      if (DecodeActivity(reinterpret_cast<uint8_t*>(record), context, &slot) ==
          Decoded::kRecord)
        slots.push_back(slot);
    }
    EXPECT_EQ(result, CUPTI_ERROR_MAX_LIMIT_REACHED);
    return slots;
  }

  alignas(8) std::vector<uint8_t> buffer_ = std::vector<uint8_t>(1 << 20);
  size_t used_ = 0;
  CuptiDecoder decoder_ = {};
  Names names_ = {};
};

TEST_F(CuptiAbiTest, TheRealIteratorAndOurDecoderAgreeOnEveryField) {
  ASSERT_NE(Library(), nullptr) << dlerror();
  for (uint32_t i = 0; i < 1000; ++i) {
    auto* kernel = Append<NewestKernel>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    kernel->start = 1000 + i;
    kernel->end = 2000 + 2 * i;
    kernel->deviceId = 3;
    kernel->contextId = 4;
    kernel->streamId = 5;
    kernel->correlationId = i;
    kernel->name = i % 2 == 0 ? "even" : "odd";
    kernel->graphNodeId = uint64_t{1} << 40 | i;
    kernel->graphId = i % 3;
    auto* link = Append<CUpti_ActivityExternalCorrelation>(
        CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
    link->externalKind = i % 4 == 0 ? CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1
                                    : CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2;
    link->externalId = uint64_t{1} << 50 | i;
    link->correlationId = i;
    auto* call = Append<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_RUNTIME);
    call->cbid = i % 2 == 0 ? CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000
                            : CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020;
    call->start = 10 * i;
    call->end = 10 * i + 3;
    call->threadId = 99;
    call->correlationId = i;
    auto* copy = Append<NewestMemcpy>(CUPTI_ACTIVITY_KIND_MEMCPY);
    copy->copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
    copy->bytes = uint64_t{i} << 20;
    copy->start = 1;
    copy->end = 2;
    copy->streamId = 6;
    copy->correlationId = i;
  }
  auto* peer = Append<CUpti_ActivityMemcpyPtoP4>(CUPTI_ACTIVITY_KIND_MEMCPY2);
  peer->bytes = 11;
  peer->start = 1;
  peer->end = 5;
  peer->correlationId = 12;
  auto* set = Append<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET);
  set->bytes = 13;
  set->start = 1;
  set->end = 2;
  auto* memory = Append<NewestMemory>(CUPTI_ACTIVITY_KIND_MEMORY2);
  memory->memoryOperationType = CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;
  memory->memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  memory->address = 0x1000;
  memory->bytes = 0x2000;
  memory->timestamp = 77;
  memory->deviceId = 2;
  memory->streamId = 8;
  auto* pool = Append<NewestPool>(CUPTI_ACTIVITY_KIND_MEMORY_POOL);
  pool->memoryPoolOperationType =
      CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_CREATED;
  pool->address = 0x3000;
  pool->size = 0x4000;
  pool->timestamp = 88;
  pool->deviceId = 1;
  auto* sync =
      Append<NewestSynchronization>(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
  sync->start = 1;
#ifdef REPRISE_CUPTI_HAS_Overhead3
  auto* overhead = Append<NewestOverhead>(CUPTI_ACTIVITY_KIND_OVERHEAD);
  overhead->start = 100;
  overhead->end = 350;
  overhead->overheadData = malloc(16);
#endif

  const std::vector<reprise_slot> slots = Walk();

  std::vector<const reprise_slot*> kernels, links, calls, copies, allocs;
  for (const reprise_slot& slot : slots) {
    if (slot.kind == REPRISE_RECORD_KERNEL) kernels.push_back(&slot);
    if (slot.kind == REPRISE_RECORD_LINK) links.push_back(&slot);
    if (slot.kind == REPRISE_RECORD_API) calls.push_back(&slot);
    if (slot.kind == REPRISE_RECORD_COPY) copies.push_back(&slot);
    if (slot.kind == REPRISE_RECORD_ALLOC) allocs.push_back(&slot);
  }
  ASSERT_EQ(kernels.size(), 1000u);
  EXPECT_EQ(links.size(), 750u);  // ids pushed by another tool are ignored
  EXPECT_EQ(calls.size(), 500u);  // without calls that launch nothing
  ASSERT_EQ(copies.size(), 1001u);
  for (uint32_t i = 0; i < 1000; ++i) {
    const reprise_body_kernel& body = kernels[i]->body.kernel;
    EXPECT_EQ(kernels[i]->ts_ns, 1000 + i);
    EXPECT_EQ(body.dur, 1000 + i);
    EXPECT_EQ(body.device, 3);
    EXPECT_EQ(body.context, 4u);
    EXPECT_EQ(body.stream, 5u);
    EXPECT_EQ(body.correlation, i);
    EXPECT_TRUE(IsText(&names_, body.name, i % 2 == 0 ? "even" : "odd"));
    EXPECT_EQ(body.graph_node_or_bytes, uint64_t{1} << 40 | i);
    EXPECT_EQ(body.graph_id, i % 3);
    EXPECT_EQ(copies[i]->body.kernel.graph_node_or_bytes, uint64_t{i} << 20);
    EXPECT_EQ(copies[i]->body.kernel.correlation, i);
  }
  EXPECT_EQ(links[0]->body.api.external_id, uint64_t{1} << 50 | 1);
  EXPECT_EQ(calls[1]->ts_ns, 20u);
  EXPECT_EQ(calls[1]->thread, 99u);
  EXPECT_EQ(copies[1000]->body.kernel.correlation, 12u);
  EXPECT_EQ(copies[1000]->body.kernel.dur, 4u);
  ASSERT_EQ(allocs.size(), 2u);
  EXPECT_EQ(allocs[0]->body.alloc.bytes, -0x2000);
  EXPECT_EQ(allocs[0]->body.alloc.device, 2);
  EXPECT_EQ(allocs[0]->ts_ns, 77u);
  EXPECT_EQ(allocs[1]->body.alloc.bytes, 0x4000);
  EXPECT_EQ(decoder_.unknown, 1u);  // the synchronization
#ifdef REPRISE_CUPTI_HAS_Overhead3
  EXPECT_EQ(decoder_.overhead_ns, 250u);
#endif
}

}  // namespace
}  // namespace reprise::profiler
