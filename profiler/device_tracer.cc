// Probing, opening windows, and restoring CUPTI's state after one.
#include "profiler/device_tracer.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profiler/agent.h"
#include "profiler/clock.h"
#include "profiler/cupti_callbacks.h"
#include "profiler/cupti_calls.h"
#include "profiler/message.h"

namespace reprise::profiler {
namespace {

constexpr uint64_t kFlushEvery = kSecond;
constexpr uint64_t kRetryEvery = kSecond;
constexpr uint64_t kClosingFlushEvery = 10 * kMillisecond;
constexpr uint64_t kLongestClosing = 2 * kSecond;

// What a window enables, in this order. Without the first one there is no point
// in the others.
struct Activity {
  uint32_t kind;
  uint32_t needs;  // this kind of the window
};
constexpr Activity kActivities[] = {
    {cupti::kConcurrentKernel, REPRISE_KIND_KERNELS},
    {cupti::kMemcpy, REPRISE_KIND_KERNELS},
    {cupti::kMemcpyPeer, REPRISE_KIND_KERNELS},
    {cupti::kMemset, REPRISE_KIND_KERNELS},
    {cupti::kOverhead, REPRISE_KIND_KERNELS},
    {cupti::kGraphTrace, REPRISE_KIND_KERNELS},
    {cupti::kMemory2, REPRISE_KIND_ALLOCS},
    {cupti::kMemoryPool, REPRISE_KIND_ALLOCS},
    {cupti::kExternalCorrelation, REPRISE_KIND_OPS},
    {cupti::kRuntime, REPRISE_KIND_OPS},
    {cupti::kDriver, REPRISE_KIND_OPS},
};
constexpr uint32_t kActivityCount = sizeof kActivities / sizeof *kActivities;

// Attributes for a window. Zeroed buffers: otherwise CUPTI zeroes them on the
// training thread. One set of buffers for all threads: per-thread buffers would
// take a MiB each. At most four device buffers: CUPTI's own limit is 250 of 3.2
// MB, which would distort what a memory profiler measures.
struct WindowAttribute {
  cupti::Attribute attribute;
  size_t bytes;
  uint64_t value;
};
constexpr WindowAttribute kAttributes[kTracedAttributes] = {
    {cupti::kZeroedOutBuffer, sizeof(uint8_t), 1},
    {cupti::kPerThreadBuffer, sizeof(uint8_t), 0},
    {cupti::kDeviceBufferPoolLimit, sizeof(size_t), 4},
    {cupti::kPreAllocate, sizeof(size_t), 1},
};
constexpr int kPoolLimitIndex = 2;
constexpr uint64_t kDefaultDeviceBufferBytes = 3200000;
constexpr uint64_t kDefaultPoolLimit = 250;

bool GetAttribute(const cupti::Functions &calls, uint32_t attribute,
                  size_t bytes, uint64_t *value) {
  *value = 0;
  return calls.ActivityGetAttribute != nullptr &&
         calls.ActivityGetAttribute(attribute, &bytes, value) == 0;
}

bool SetAttribute(const cupti::Functions &calls, uint32_t attribute,
                  size_t bytes, uint64_t value) {
  return calls.ActivitySetAttribute != nullptr &&
         calls.ActivitySetAttribute(attribute, &bytes, &value) == 0;
}

void SetAttributes(DeviceTracer *tracer) {
  for (int i = 0; i < kTracedAttributes; ++i) {
    const WindowAttribute &wanted = kAttributes[i];
    SavedAttribute &saved = tracer->saved[i];
    saved.changed = GetAttribute(tracer->calls, wanted.attribute, wanted.bytes,
                                 &saved.value) &&
                    saved.value != wanted.value &&
                    SetAttribute(tracer->calls, wanted.attribute, wanted.bytes,
                                 wanted.value);
  }
  uint64_t size, limit;
  if (!GetAttribute(tracer->calls, cupti::kDeviceBufferSize, sizeof(size_t),
                    &size))
    size = kDefaultDeviceBufferBytes;
  if (!GetAttribute(tracer->calls, cupti::kDeviceBufferPoolLimit,
                    sizeof(size_t), &limit))
    limit = kDefaultPoolLimit;
  tracer->facts.device_bytes = size * limit;
}

void RestoreAttributes(DeviceTracer *tracer) {
  for (int i = 0; i < kTracedAttributes; ++i) {
    const WindowAttribute &wanted = kAttributes[i];
    if (tracer->saved[i].changed)
      SetAttribute(tracer->calls, wanted.attribute, wanted.bytes,
                   tracer->saved[i].value);
    tracer->saved[i] = {};
  }
  tracer->facts.device_bytes = 0;
}

void SetThreadIds(DeviceTracer *tracer) {
  const cupti::Functions &calls = tracer->calls;
  tracer->saved_thread_type = calls.GetThreadIdType != nullptr &&
                              calls.SetThreadIdType != nullptr &&
                              calls.GetThreadIdType(&tracer->thread_type) == 0;
  if (tracer->saved_thread_type) calls.SetThreadIdType(cupti::kThreadIdSystem);
}

void Explain(DeviceTracer *tracer, uint32_t level, const char *what,
             int result) {
  tracer->facts.level = level;
  snprintf(tracer->facts.why, sizeof tracer->facts.why,
           "%s answers %d: %s; times come from the host clock", what, result,
           ExplainCupti(result));
}

bool Load(DeviceTracer *tracer, bool only_loaded) {
  if (tracer->loaded) return true;
  TracerFacts &facts = tracer->facts;
  tracer->loaded = LoadCupti(tracer->path, only_loaded, &tracer->calls,
                             &facts.cupti_version, facts.why, sizeof facts.why);
  if (!tracer->loaded) return false;
  const bool ops = tracer->calls.ActivityPushExternalCorrelationId != nullptr &&
                   tracer->calls.ActivityPopExternalCorrelationId != nullptr;
  facts.level = ops ? 3 : 2;
  facts.why[0] = 0;
  if (!ops)
    snprintf(facts.why, sizeof facts.why,
             "libcupti has no external correlation ids: kernels are matched "
             "to ops by time");
  return true;
}

// Finds out which tool holds the subscription; only the newer call reports it.
// If the call succeeds, the holder has just left, and the next attempt will
// find the subscription free.
void AskForHolder(DeviceTracer *tracer) {
  TracerFacts &facts = tracer->facts;
  facts.holder[0] = 0;
  char name[cupti::kHolderBytes + 1] = {};
  if (tracer->calls.Subscribe_v2 != nullptr) {
    cupti::SubscriberParams params = {sizeof params, "Reprise", name,
                                      cupti::kHolderBytes};
    void *subscriber = nullptr;
    if (tracer->calls.Subscribe_v2(&subscriber, OnCuptiCallback, nullptr,
                                   &params) == cupti::kSuccess)
      tracer->calls.Unsubscribe(subscriber);
  }
  CopySentence(name, strlen(name), facts.holder, sizeof facts.holder);
  facts.level = 1;
  snprintf(facts.why, sizeof facts.why,
           "CUPTI is held by %s: times come from the host clock; the next "
           "window tries again, and `reprise import` reads that tool's trace",
           facts.holder[0] != 0 ? facts.holder : "another tool");
}

bool Subscribe(DeviceTracer *tracer) {
  void *subscriber = nullptr;
  const int result =
      tracer->calls.Subscribe(&subscriber, OnCuptiCallback, nullptr);
  if (result == cupti::kSuccess) {
    tracer->subscriber = subscriber;
    tracer->facts.holder[0] = 0;
    tracer->facts.why[0] = 0;
    return true;
  }
  if (result == cupti::kMultipleSubscribers) {
    AskForHolder(tracer);
    return false;
  }
  tracer->broken = true;
  Explain(tracer, 1, "cuptiSubscribe", result);
  return false;
}

// Turns API records of the calls that put work on the device on or off, call by
// call. Returns how many calls the library knows.
int SwitchCalls(const cupti::Functions &calls, bool runtime, uint8_t on) {
  const auto enable =
      runtime ? calls.ActivityEnableRuntimeApi : calls.ActivityEnableDriverApi;
  const cupti::CallSet &set =
      runtime ? cupti::kRuntimeCalls : cupti::kDriverCalls;
  int known = 0;
  for (uint32_t call = 0; call < cupti::CallSet::kLimit; ++call)
    known += set.Has(call) && enable(call, on) == 0;
  return known;
}

// Enables RUNTIME or DRIVER records: only for calls that put work on the device
// if the library can (12.5), otherwise for all calls, filtered on reading.
bool EnableApi(DeviceTracer *tracer, uint32_t kind) {
  const cupti::Functions &calls = tracer->calls;
  const bool runtime = kind == cupti::kRuntime;
  tracer->api_by_call =
      !tracer->all_api && (runtime ? calls.ActivityEnableRuntimeApi
                                   : calls.ActivityEnableDriverApi) != nullptr;
  if (!tracer->api_by_call) return calls.ActivityEnable(kind) == 0;
  return SwitchCalls(calls, runtime, 1) > 0;
}

void DisableApi(DeviceTracer *tracer, uint32_t kind) {
  if (tracer->api_by_call)
    SwitchCalls(tracer->calls, kind == cupti::kRuntime, 0);
  else
    tracer->calls.ActivityDisable(kind);
}

bool IsWanted(const DeviceTracer *tracer, const Activity &activity) {
  if ((tracer->wanted & activity.needs) == 0) return false;
  if (activity.kind == cupti::kGraphTrace) return tracer->graph_trace;
  if (activity.kind == cupti::kRuntime || activity.kind == cupti::kDriver)
    return !tracer->no_api;
  // Its layout is known only from this version on.
  if (activity.kind == cupti::kOverhead)
    return tracer->facts.cupti_version >= cupti::kOverheadDataApi;
  return true;
}

// Enables all activities of the window. Returns false if kernels cannot be
// traced.
bool Enable(DeviceTracer *tracer) {
  for (uint32_t i = 0; i < kActivityCount; ++i) {
    if (!IsWanted(tracer, kActivities[i])) continue;
    const uint32_t kind = kActivities[i].kind;
    const bool api = kind == cupti::kRuntime || kind == cupti::kDriver;
    const int result = api ? (EnableApi(tracer, kind) ? 0 : cupti::kUnknown)
                           : tracer->calls.ActivityEnable(kind);
    if (result == cupti::kSuccess) {
      tracer->enabled |= 1u << i;
    } else if (kind == cupti::kConcurrentKernel) {
      tracer->broken = true;
      Explain(tracer, 1, "cuptiActivityEnable", result);
      return false;
    } else if (kind == cupti::kExternalCorrelation) {
      Explain(tracer, 2, "cuptiActivityEnable of external correlation", result);
    }
  }
  return true;
}

void Disable(DeviceTracer *tracer) {
  __atomic_store_n(&tracer->op_links, 0u, __ATOMIC_RELEASE);
  for (uint32_t i = kActivityCount; i-- > 0;) {
    if ((tracer->enabled & 1u << i) == 0) continue;
    const uint32_t kind = kActivities[i].kind;
    if (kind == cupti::kRuntime || kind == cupti::kDriver)
      DisableApi(tracer, kind);
    else
      tracer->calls.ActivityDisable(kind);
  }
  tracer->enabled = 0;
}

// Ends the window: restores CUPTI's attributes and thread ids, and releases the
// subscription.
void GiveBack(DeviceTracer *tracer) {
  tracer->closing = false;
  RestoreAttributes(tracer);
  if (tracer->saved_thread_type)
    tracer->calls.SetThreadIdType(tracer->thread_type);
  tracer->saved_thread_type = false;
  tracer->calls.Unsubscribe(tracer->subscriber);
  tracer->subscriber = nullptr;
}

bool Configure(DeviceTracer *tracer) {
  SetThreadIds(tracer);
  SetAttributes(tracer);
  // Clock and buffers in every window: another client may have registered its
  // own. The clock precedes any enable: otherwise records carry CLOCK_REALTIME.
  const auto set_clock = tracer->calls.ActivityRegisterTimestampCallback;
  tracer->clock_id = set_clock != nullptr && set_clock(CuptiClock) == 0
                         ? REPRISE_CLOCK_MONOTONIC
                         : REPRISE_CLOCK_REALTIME;
  const int result = tracer->calls.ActivityRegisterCallbacks(OnBufferRequested,
                                                             OnBufferCompleted);
  if (result == cupti::kSuccess) return true;
  tracer->broken = true;
  Explain(tracer, 1, "cuptiActivityRegisterCallbacks", result);
  return false;
}

bool Open(DeviceTracer *tracer, uint64_t now_ns) {
  tracer->retry_ns = now_ns + kRetryEvery;
  if (tracer->broken || tracer->driver_missing) return false;
  if (!Load(tracer, /*only_loaded=*/false)) {
    tracer->broken = true;
    return false;
  }
  if (!PreparePool(&tracer->pool)) {
    snprintf(tracer->facts.why, sizeof tracer->facts.why,
             "no memory for CUPTI's buffers: times come from the host clock");
    return false;
  }
  const bool had_it = tracer->subscriber != nullptr;  // still closing
  if (!had_it && !Subscribe(tracer)) return false;
  tracer->closing = false;
  tracer->facts.level =
      tracer->calls.ActivityPushExternalCorrelationId != nullptr ? 3 : 2;
  if ((!had_it && !Configure(tracer)) || !Enable(tracer)) {
    Disable(tracer);
    GiveBack(tracer);
    return false;
  }
  tracer->flushed_ns = now_ns;
  constexpr uint32_t kLinks = 1u << 8;
  static_assert(kActivities[8].kind == cupti::kExternalCorrelation, "");
  if ((tracer->enabled & kLinks) != 0 && tracer->facts.level == 3)
    __atomic_store_n(&tracer->op_links, 1u, __ATOMIC_RELEASE);
  return true;
}

void ReportDrops(Agent *agent, uint64_t now_ns) {
  DeviceTracer *tracer = &agent->tracer;
  Ring *ring = CurrentRing(agent);
  const uint64_t count =
      __atomic_exchange_n(&tracer->unreported, uint64_t{0}, __ATOMIC_ACQ_REL);
  if (count == 0 || ring == nullptr) return;
  agent->outgoing.capabilities = true;
  reprise_slot record = {};
  record.kind = REPRISE_RECORD_LOSS;
  record.clock_id = REPRISE_CLOCK_MONOTONIC;
  record.ts_ns =
      __atomic_load_n(&tracer->unreported_since_ns, __ATOMIC_RELAXED);
  if (record.ts_ns == 0 || record.ts_ns > now_ns) record.ts_ns = now_ns;
  record.body.loss.last_ts = now_ns;
  record.body.loss.count = count;
  record.body.loss.why = REPRISE_LOSS_DEVICE;
  uint64_t position;
  if (!TryPush(ring, record, &position))
    __atomic_fetch_add(&tracer->unreported, count, __ATOMIC_RELEASE);
}

}  // namespace

void ProbeTracer(const char *cupti_path, DeviceTracer *tracer) {
  TracerFacts &facts = tracer->facts;
  if (cupti_path == nullptr || *cupti_path == 0)
    cupti_path = getenv("REPRISE_CUPTI_PATH");
  snprintf(tracer->path, sizeof tracer->path, "%s",
           cupti_path != nullptr ? cupti_path : "");
  const char *recording = getenv("REPRISE_RECORD_CUPTI");
  snprintf(tracer->recording, sizeof tracer->recording, "%s",
           recording != nullptr ? recording : "");
  const char *options = getenv("REPRISE_CUPTI_OPTIONS");
  tracer->all_api = options != nullptr && strstr(options, "all_api") != nullptr;
  tracer->no_api = options != nullptr && strstr(options, "no_api") != nullptr;
  tracer->graph_trace =
      options != nullptr && strstr(options, "graph_trace") != nullptr;

  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  tracer->driver_missing = driver == nullptr;
  if (driver == nullptr) {
    facts.level = 0;
    snprintf(facts.why, sizeof facts.why,
             "no NVIDIA driver (libcuda.so.1 not found)");
    return;
  }
  // Works without cuInit, which the agent must not call.
  using VersionFn = int (*)(int *);
  int version = 0;
  if (auto get =
          reinterpret_cast<VersionFn>(dlsym(driver, "cuDriverGetVersion"));
      get != nullptr && get(&version) == 0)
    facts.driver_version = static_cast<uint32_t>(version);
  dlclose(driver);

  // The job may load another copy of CUPTI later. So load one here only if it
  // was named; otherwise the first window looks for it.
  if (Load(tracer, /*only_loaded=*/tracer->path[0] == 0)) return;
  facts.level = 1;
  if (tracer->path[0] != 0) {
    tracer->broken = true;
    return;
  }
  snprintf(facts.why, sizeof facts.why,
           "CUPTI is not loaded yet: the first window looks for it");
}

bool BeginDeviceWindow(Agent *agent, uint32_t kinds) {
  DeviceTracer *tracer = &agent->tracer;
  agent->outgoing.capabilities = true;
  if ((kinds & REPRISE_KIND_KERNELS) == 0) {
    EndDeviceWindow(agent, /*now=*/false);
    return true;
  }
  if (tracer->subscriber != nullptr && !tracer->closing) {
    if (tracer->wanted == kinds) return true;
    Disable(tracer);
  }
  tracer->wanted = kinds;
  return Open(tracer, NowNs());
}

void EndDeviceWindow(Agent *agent, bool now) {
  DeviceTracer *tracer = &agent->tracer;
  tracer->wanted = 0;
  if (tracer->subscriber == nullptr) return;
  Disable(tracer);
  agent->outgoing.capabilities = true;
  const uint64_t now_ns = NowNs();
  if (!tracer->closing) tracer->closing_ns = now_ns;
  tracer->closing = true;
  tracer->flushed_ns = now_ns;
  tracer->calls.ActivityFlushAll(now ? 1 : 0);
  if (now || BuffersOut(&tracer->pool) == 0) GiveBack(tracer);
  ReportDrops(agent, now_ns);
}

void ServiceDevice(Agent *agent, uint64_t now_ns) {
  DeviceTracer *tracer = &agent->tracer;
  if (tracer->subscriber == nullptr) {
    if (tracer->wanted != 0 && !tracer->broken && !tracer->driver_missing &&
        agent->window.paused == 0 && now_ns >= tracer->retry_ns) {
      agent->outgoing.capabilities = true;
      Open(tracer, now_ns);
    }
    return ReportDrops(agent, now_ns);
  }
  const uint64_t every = tracer->closing ? kClosingFlushEvery : kFlushEvery;
  if (now_ns - tracer->flushed_ns >= every) {
    const bool force =
        tracer->closing && now_ns - tracer->closing_ns >= kLongestClosing;
    tracer->flushed_ns = now_ns;
    tracer->calls.ActivityFlushAll(force ? 1 : 0);
    if (tracer->closing && (force || BuffersOut(&tracer->pool) == 0))
      GiveBack(tracer);
  }
  ReportDrops(agent, now_ns);
}

void FlushDevice(Agent *agent) {
  DeviceTracer *tracer = &agent->tracer;
  if (tracer->subscriber == nullptr) return;
  const uint64_t now_ns = NowNs();
  tracer->flushed_ns = now_ns;
  tracer->calls.ActivityFlushAll(0);
  if (tracer->closing && BuffersOut(&tracer->pool) == 0) GiveBack(tracer);
  ReportDrops(agent, now_ns);
}

void PrepareDevice(DeviceTracer *tracer) {
  if (!Load(tracer, /*only_loaded=*/true)) return;
  // Stays set for the life of the process, unlike the attributes of a window.
  for (int i = kPoolLimitIndex; i < kTracedAttributes; ++i)
    SetAttribute(tracer->calls, kAttributes[i].attribute, kAttributes[i].bytes,
                 kAttributes[i].value);
}

bool PushDeviceOp(Agent *agent, uint64_t op) {
  return agent->tracer.calls.ActivityPushExternalCorrelationId(
             cupti::kCustom2, op) == cupti::kSuccess;
}

void PopDeviceOps(Agent *agent, int count) {
  const auto pop = agent->tracer.calls.ActivityPopExternalCorrelationId;
  if (pop == nullptr) return;
  for (uint64_t last; count > 0; --count) pop(cupti::kCustom2, &last);
}

}  // namespace reprise::profiler
