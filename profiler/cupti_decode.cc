#include "profiler/cupti_decode.h"

#include <stdlib.h>
#include <string.h>

#include "profiler/cupti_abi.h"
#include "profiler/cupti_calls.h"

namespace reprise::profiler {
namespace {

using cupti::Field;

constexpr uint64_t kAddressMask = (uint64_t{1} << 47) - 1;

void Count(uint64_t *counter, uint64_t n = 1) {
  __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

uint32_t InternKernelName(const DecodeContext &context, const char *name) {
  if (name == nullptr) return 0;
  const uint64_t address = reinterpret_cast<uint64_t>(name);
  const bool cachable = (address & ~kAddressMask) == 0;
  uint64_t *entry =
      &context.decoder
           ->name_cache[(address ^ (address >> 12)) % kNameCacheEntries];
  if (cachable) {
    const uint64_t known = __atomic_load_n(entry, __ATOMIC_RELAXED);
    const uint32_t id = static_cast<uint32_t>(known >> 47);
    // The address may have been reused for another text since.
    if (id != 0 && (known & kAddressMask) == address &&
        IsText(context.names, id, name))
      return id;
  }
  const uint32_t id = Intern(context.names, name, strlen(name));
  if (cachable)
    __atomic_store_n(entry, address | static_cast<uint64_t>(id) << 47,
                     __ATOMIC_RELAXED);
  return id;
}

void DecodeTimed(const uint8_t *record, const cupti::TimedLayout &layout,
                 const DecodeContext &context, reprise_slot *slot) {
  const uint64_t start = Field<uint64_t>(record, layout.start);
  const uint64_t end = Field<uint64_t>(record, layout.end);
  reprise_body_kernel &body = slot->body.kernel;
  slot->ts_ns = start;
  slot->clock_id = context.clock_id;
  body.dur = end - start;
  // No device buffer was left for its times, or the kernel had not ended.
  if (start == 0 || end < start) {
    slot->ts_ns = context.now_ns;
    slot->clock_id = REPRISE_CLOCK_MONOTONIC;
    body.dur = 0;
    body.flags |= REPRISE_KERNEL_UNTIMED;
    Count(&context.decoder->untimed);
  }
  body.correlation = Field<uint32_t>(record, layout.correlation);
  body.stream = Field<uint32_t>(record, layout.stream);
  body.context = Field<uint32_t>(record, layout.context);
  body.device = static_cast<uint16_t>(Field<uint32_t>(record, layout.device));
  body.graph_id = Field<uint32_t>(record, layout.graph);
  if (body.graph_id != 0) body.flags |= REPRISE_KERNEL_IN_GRAPH;
  if (layout.bytes != 0)
    body.graph_node_or_bytes = Field<uint64_t>(record, layout.bytes);
  else if (layout.graph_node != 0)
    body.graph_node_or_bytes = Field<uint64_t>(record, layout.graph_node);
  if (layout.copy_kind != 0)
    body.flags |= static_cast<uint16_t>(record[layout.copy_kind]
                                        << REPRISE_KERNEL_COPY_KIND_SHIFT);
  if (layout.name != 0)
    body.name =
        InternKernelName(context, Field<const char *>(record, layout.name));
}

// Returns false for an operation that changes no size.
bool DecodeMemory(const uint8_t *record, const DecodeContext &context,
                  reprise_slot *slot) {
  namespace memory = cupti::memory;
  const uint32_t operation = Field<uint32_t>(record, memory::kOperation);
  if (operation != memory::kAllocation && operation != memory::kRelease)
    return false;
  const uint64_t bytes = Field<uint64_t>(record, memory::kBytes);
  const uint32_t kind = Field<uint32_t>(record, memory::kMemoryKind);
  const bool on_host = kind == memory::kPageable || kind == memory::kPinned;
  slot->ts_ns = Field<uint64_t>(record, memory::kTimestamp);
  slot->clock_id = context.clock_id;
  reprise_body_alloc &body = slot->body.alloc;
  body.address = Field<uint64_t>(record, memory::kAddress);
  body.bytes = operation == memory::kAllocation ? static_cast<int64_t>(bytes)
                                                : -static_cast<int64_t>(bytes);
  body.stream = Field<uint32_t>(record, memory::kStream);
  body.device = on_host ? -1 : Field<int32_t>(record, memory::kDevice);
  body.what = REPRISE_DRIVER;
  return true;
}

bool DecodePool(const uint8_t *record, const DecodeContext &context,
                reprise_slot *slot) {
  namespace pool = cupti::pool;
  const uint32_t operation = Field<uint32_t>(record, pool::kOperation);
  if (operation < pool::kCreated || operation > pool::kTrimmed) return false;
  const uint64_t size = Field<uint64_t>(record, pool::kSize);
  slot->ts_ns = Field<uint64_t>(record, pool::kTimestamp);
  slot->clock_id = context.clock_id;
  reprise_body_alloc &body = slot->body.alloc;
  body.address = Field<uint64_t>(record, pool::kAddress);
  // A trim reports the remaining size, not what was released.
  body.bytes = operation == pool::kDestroyed ? -static_cast<int64_t>(size)
                                             : static_cast<int64_t>(size);
  body.device = Field<int32_t>(record, pool::kDevice);
  body.what = REPRISE_POOL;
  return true;
}

void DecodeApi(const uint8_t *record, const DecodeContext &context,
               reprise_slot *slot) {
  namespace api = cupti::api;
  const uint64_t start = Field<uint64_t>(record, api::kStart);
  const uint64_t end = Field<uint64_t>(record, api::kEnd);
  slot->ts_ns = start;
  slot->clock_id = context.clock_id;
  slot->thread = Field<uint32_t>(record, api::kThread);
  slot->body.api.dur = end > start ? end - start : 0;
  slot->body.api.correlation = Field<uint32_t>(record, api::kCorrelation);
  slot->body.api.cbid = Field<uint32_t>(record, api::kCbid);
}

bool IsDeviceCall(uint32_t kind, uint32_t cbid) {
  return (kind == cupti::kRuntime ? cupti::kRuntimeCalls : cupti::kDriverCalls)
      .Has(cbid);
}

}  // namespace

Decoded DecodeActivity(const uint8_t *record, const DecodeContext &context,
                       reprise_slot *slot) {
  memset(slot, 0, sizeof *slot);
  const uint32_t kind = Field<uint32_t>(record, 0);
  slot->clock_id = REPRISE_CLOCK_MONOTONIC;
  slot->ts_ns = context.now_ns;
  switch (kind) {
    case cupti::kConcurrentKernel:
      slot->kind = REPRISE_RECORD_KERNEL;
      DecodeTimed(record, cupti::kKernelLayout, context, slot);
      return Decoded::kRecord;
    case cupti::kGraphTrace:
      slot->kind = REPRISE_RECORD_KERNEL;
      DecodeTimed(record, cupti::kGraphTraceLayout, context, slot);
      slot->body.kernel.name = Intern(context.names, "CUDA graph", 10);
      return Decoded::kRecord;
    case cupti::kMemcpy:
      slot->kind = REPRISE_RECORD_COPY;
      DecodeTimed(record, cupti::kMemcpyLayout, context, slot);
      return Decoded::kRecord;
    case cupti::kMemcpyPeer:
      slot->kind = REPRISE_RECORD_COPY;
      DecodeTimed(record, cupti::kMemcpyPeerLayout, context, slot);
      return Decoded::kRecord;
    case cupti::kMemset:
      slot->kind = REPRISE_RECORD_SET;
      DecodeTimed(record, cupti::kMemsetLayout, context, slot);
      return Decoded::kRecord;
    case cupti::kExternalCorrelation:
      // An id of another tool.
      if (Field<uint32_t>(record, cupti::external::kKind) != cupti::kCustom2)
        return Decoded::kNothing;
      slot->kind = REPRISE_RECORD_LINK;
      slot->body.api.external_id =
          Field<uint64_t>(record, cupti::external::kId);
      slot->body.api.correlation =
          Field<uint32_t>(record, cupti::external::kCorrelation);
      return Decoded::kRecord;
    case cupti::kRuntime:
    case cupti::kDriver:
      if (!IsDeviceCall(kind, Field<uint32_t>(record, cupti::api::kCbid)))
        return Decoded::kNothing;
      slot->kind = REPRISE_RECORD_API;
      DecodeApi(record, context, slot);
      return Decoded::kRecord;
    case cupti::kMemory2:
      slot->kind = REPRISE_RECORD_ALLOC;
      return DecodeMemory(record, context, slot) ? Decoded::kRecord
                                                 : Decoded::kNothing;
    case cupti::kMemoryPool:
      slot->kind = REPRISE_RECORD_ALLOC;
      return DecodePool(record, context, slot) ? Decoded::kRecord
                                               : Decoded::kNothing;
    case cupti::kOverhead: {
      if (!context.overhead_has_data) return Decoded::kNothing;
      const uint64_t start = Field<uint64_t>(record, cupti::overhead::kStart);
      const uint64_t end = Field<uint64_t>(record, cupti::overhead::kEnd);
      if (end > start) Count(&context.decoder->overhead_ns, end - start);
      // CUPTI's documentation leaves it to the client to free this.
      free(Field<void *>(record, cupti::overhead::kData));
      return Decoded::kNothing;
    }
    default:
      Count(&context.decoder->unknown);
      return Decoded::kUnknown;
  }
}

}  // namespace reprise::profiler
