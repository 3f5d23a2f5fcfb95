// Implements fake_cupti.h. REPRISE_FAKE_LAYOUT is 118, 120 or 130 and selects
// the record sizes of CUDA 11.8, 12 or 13.
#include "tests/profiler/fake_cupti/fake_cupti.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kLayout = REPRISE_FAKE_LAYOUT;
constexpr int kMultiple = 39, kQueueEmpty = 18, kMaxLimit = 12,
              kInvalidParameter = 1, kInvalidKind = 21;

constexpr size_t kKernelBytes = kLayout == 118   ? 200
                                : kLayout == 120 ? 208
                                                 : 216;
constexpr size_t kMemcpyBytes = kLayout == 118 ? 88 : 96;
constexpr size_t kPeerBytes = kLayout == 118 ? 96 : 104;
constexpr size_t kMemsetBytes = 88;
constexpr size_t kMemoryBytes = kLayout == 118 ? 120 : 128;
constexpr size_t kPoolBytes = kLayout == 118 ? 72 : 80;
constexpr size_t kOverheadBytes = kLayout == 118 ? 40 : 56;
constexpr size_t kUnknownBytes = 152;
constexpr uint32_t kUnknownKind = 60;

size_t SizeOf(uint32_t kind) {
  switch (kind) {
    case 1:
      return kMemcpyBytes;
    case 2:
      return kMemsetBytes;
    case 4:
    case 5:
      return 40;
    case 10:
      return kKernelBytes;
    case 17:
      return kOverheadBytes;
    case 22:
      return kPeerBytes;
    case 39:
      return 24;
    case 49:
      return kMemoryBytes;
    case 50:
      return kPoolBytes;
    case kUnknownKind:
      return kUnknownBytes;
    default:
      return 0;
  }
}

uint64_t ReadClock(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u +
         static_cast<uint64_t>(t.tv_nsec);
}

uint64_t DefaultClock() { return ReadClock(CLOCK_REALTIME); }

// The device's clock: as fast as the host's, with a zero of its own.
uint64_t DeviceClock() { return ReadClock(CLOCK_MONOTONIC) + 7000000000u; }

struct ClockPair {
  uint64_t device, host;
};

struct Buffer {
  uint8_t *bytes = nullptr;
  size_t size = 0, used = 0;
  std::vector<uint8_t *> running;  // kernels that have not ended
};

using Requested = void (*)(uint8_t **, size_t *, size_t *);
using Completed = void (*)(void *, uint32_t, uint8_t *, size_t, size_t);

std::recursive_mutex g_mutex;
FakeCupti g_fake;
Requested g_requested;
Completed g_completed;
std::set<uint32_t> g_kinds;
std::map<uint32_t, std::set<uint32_t>> g_calls;  // kind to cbids
std::deque<Buffer> g_buffers;                    // the last is being filled
std::vector<Buffer> g_full;                      // for the delivery thread
uint32_t g_correlation;
size_t g_dropped;
bool g_subscribed;
std::optional<ClockPair> g_pair;  // the last one of the registered clock
std::thread g_thread;
bool g_stop;

// Stacks are per thread and kind, as in the real library.
std::map<uint32_t, std::vector<uint64_t>> &Stack() {
  thread_local std::map<uint32_t, std::vector<uint64_t>> stack;
  return stack;
}

template <typename T>
void Put(uint8_t *record, size_t offset, T value) {
  memcpy(record + offset, &value, sizeof value);
}

void TakeClockPair(int64_t off_ns) {
  std::unique_lock lock(g_mutex);
  ClockPair pair;
  uint64_t after;
  do {  // again if this thread had to wait between the two clocks
    pair.device = DeviceClock();
    pair.host = g_fake.clock() + static_cast<uint64_t>(off_ns);
    after = DeviceClock();
  } while (after - pair.device > 5000);
  g_pair = pair;
}

// Turns the device's times in a buffer into the host's.
void Interpolate(const Buffer &buffer) {
  std::unique_lock lock(g_mutex);
  const std::optional<ClockPair> before = g_pair;
  TakeClockPair(0);
  const ClockPair now = *g_pair;
  double slope = 1;
  if (before && before->device != now.device) {
    slope =
        (static_cast<double>(now.host) - static_cast<double>(before->host)) /
        static_cast<double>(now.device - before->device);
  }
  const auto convert = [&](uint8_t *field) {
    uint64_t time;
    memcpy(&time, field, sizeof time);
    if (time == 0) return;  // untimed
    const double ago =
        static_cast<double>(now.device) - static_cast<double>(time);
    Put(field, 0,
        now.host - static_cast<uint64_t>(static_cast<int64_t>(ago * slope)));
  };
  for (size_t at = 0; at < buffer.used;) {
    uint8_t *record = buffer.bytes + at;
    uint32_t kind;
    memcpy(&kind, record, sizeof kind);
    if (kind == 1 || kind == 2 || kind == 10 || kind == 22) {
      convert(record + 16);
      convert(record + 24);
    }
    at += SizeOf(kind);
  }
}

void Deliver(Buffer buffer) {
  if (g_fake.interpolates) Interpolate(buffer);
  g_completed(nullptr, 0, buffer.bytes, buffer.size, buffer.used);
}

// Delivers buffers without holding the lock, as the real library does:
// callbacks may call CUPTI.
void DeliverWithout(std::unique_lock<std::recursive_mutex> &lock,
                    std::vector<Buffer> ready) {
  g_fake.buffers_out -= static_cast<uint32_t>(ready.size());
  lock.unlock();
  for (Buffer &buffer : ready) Deliver(std::move(buffer));
  lock.lock();
}

void Loop() {
  std::unique_lock lock(g_mutex);
  while (!g_stop) {
    if (!g_full.empty()) DeliverWithout(lock, std::exchange(g_full, {}));
    lock.unlock();
    timespec pause = {0, 200000};
    nanosleep(&pause, nullptr);
    lock.lock();
  }
}

void StartThread() {
  if (g_thread.joinable()) return;
  g_thread = std::thread(Loop);
  g_thread.detach();
}

uint8_t *Record(uint32_t kind, std::unique_lock<std::recursive_mutex> &lock) {
  if (g_fake.lose > 0) {
    --g_fake.lose;
    ++g_dropped;
    return nullptr;
  }
  const size_t size = SizeOf(kind);
  if (g_buffers.empty() ||
      g_buffers.back().used + size > g_buffers.back().size) {
    if (!g_buffers.empty() && g_buffers.back().running.empty()) {
      std::vector<Buffer> full = {std::move(g_buffers.back())};
      g_buffers.pop_back();
      if (g_fake.own_thread) {
        StartThread();
        g_full.push_back(std::move(full[0]));
      } else {
        DeliverWithout(lock, std::move(full));
      }
    }
    Buffer next;
    size_t max_records = 0;
    g_requested(&next.bytes, &next.size, &max_records);
    if (next.bytes == nullptr) {
      ++g_fake.buffers_refused;
      ++g_dropped;
      return nullptr;
    }
    ++g_fake.buffers_out;
    if (g_fake.attribute[5] == 0) {
      memset(next.bytes, 0, next.size);
    } else {
      for (size_t i = 0; i < next.size; ++i)
        if (next.bytes[i] != 0) {
          ++g_fake.dirty_buffers;
          break;
        }
    }
    g_buffers.push_back(std::move(next));
  }
  Buffer &buffer = g_buffers.back();
  uint8_t *record = buffer.bytes + buffer.used;
  buffer.used += size;
  Put(record, 0, kind);
  return record;
}

uint64_t Now() { return g_fake.clock(); }
uint64_t DeviceNow() { return g_fake.interpolates ? DeviceClock() : Now(); }

uint32_t ThreadIdOf() {
  // SYSTEM ids are gettid's; others are the low bits of pthread_self.
  if (g_fake.thread_id_type == 1) return static_cast<uint32_t>(gettid());
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pthread_self()));
}

bool CallIsOn(uint32_t kind, uint32_t cbid) {
  return g_kinds.count(kind) != 0 || g_calls[kind].count(cbid) != 0;
}

// Records an API call and, with it, the external ids.
void ApiCall(uint32_t cbid, uint32_t correlation,
             std::unique_lock<std::recursive_mutex> &lock) {
  if (!CallIsOn(5, cbid)) return;
  if (g_kinds.count(39) != 0) {
    for (const auto &[kind, ids] : Stack()) {
      if (ids.empty()) continue;
      if (uint8_t *record = Record(39, lock)) {
        Put(record, 4, kind);
        Put(record, 8, ids.back());
        Put(record, 16, correlation);
      }
    }
  }
  const uint64_t now = Now();
  if (uint8_t *record = Record(5, lock)) {
    Put(record, 4, cbid);
    Put(record, 8, now);
    Put(record, 16, now + 1000);
    Put(record, 24, static_cast<uint32_t>(getpid()));
    Put(record, 28, ThreadIdOf());
    Put(record, 32, correlation);
  }
}

void Kernel(const char *name, uint64_t dur_ns, bool running,
            uint32_t correlation, uint32_t graph, uint64_t node,
            std::unique_lock<std::recursive_mutex> &lock) {
  if (g_kinds.count(3) != 0) g_fake.serial_kernels = true;
  if (g_kinds.count(10) == 0) return;
  uint8_t *record = Record(10, lock);
  if (record == nullptr) return;
  const uint64_t start = g_fake.untimed ? 0 : DeviceNow();
  Put(record, 16, start);
  Put(record, 24, running || g_fake.untimed ? 0 : start + dur_ns);
  Put(record, 40, uint32_t{1});  // device
  Put(record, 44, uint32_t{2});  // context
  Put(record, 48, uint32_t{7});  // stream
  Put(record, 92, correlation);
  Put(record, 104, name);
  Put(record, 144, node);
  Put(record, 156, graph);
  // The bytes after the common prefix differ between layouts.
  memset(record + 168, 0xee, kKernelBytes - 168);
  if (running) g_buffers.back().running.push_back(record);
}

uint32_t Launch(const char *name, uint64_t dur_ns, bool running) {
  std::unique_lock lock(g_mutex);
  const uint32_t correlation = ++g_correlation;
  ApiCall(211, correlation, lock);
  Kernel(name, dur_ns, running, correlation, 0, 0, lock);
  return correlation;
}

uint32_t LaunchGraph(const char *name, uint32_t nodes, uint32_t graph) {
  std::unique_lock lock(g_mutex);
  const uint32_t correlation = ++g_correlation;
  ApiCall(311, correlation, lock);
  for (uint32_t node = 0; node < nodes; ++node)
    Kernel(name, 1000, false, correlation, graph, 100 + node, lock);
  return correlation;
}

uint32_t Copy(uint64_t bytes, uint32_t copy_kind) {
  std::unique_lock lock(g_mutex);
  const uint32_t correlation = ++g_correlation;
  ApiCall(41, correlation, lock);
  if (g_kinds.count(1) == 0) return correlation;
  if (uint8_t *record = Record(1, lock)) {
    const uint64_t now = DeviceNow();
    record[4] = static_cast<uint8_t>(copy_kind);
    Put(record, 8, bytes);
    Put(record, 16, now);
    Put(record, 24, now + 500);
    Put(record, 32, uint32_t{1});
    Put(record, 36, uint32_t{2});
    Put(record, 40, uint32_t{9});
    Put(record, 44, correlation);
  }
  return correlation;
}

void Peer(uint64_t bytes) {
  std::unique_lock lock(g_mutex);
  if (g_kinds.count(22) == 0) return;
  if (uint8_t *record = Record(22, lock)) {
    const uint64_t now = DeviceNow();
    record[4] = 8;  // peer to peer
    Put(record, 8, bytes);
    Put(record, 16, now);
    Put(record, 24, now + 600);
    Put(record, 32, uint32_t{1});
    Put(record, 40, uint32_t{9});
    Put(record, 60, ++g_correlation);
  }
}

void Set(uint64_t bytes) {
  std::unique_lock lock(g_mutex);
  if (g_kinds.count(2) == 0) return;
  if (uint8_t *record = Record(2, lock)) {
    const uint64_t now = DeviceNow();
    Put(record, 8, bytes);
    Put(record, 16, now);
    Put(record, 24, now + 300);
    Put(record, 32, uint32_t{1});
    Put(record, 40, uint32_t{9});
    Put(record, 44, ++g_correlation);
  }
}

void Memory(uint64_t address, uint64_t bytes, bool release, uint32_t kind) {
  std::unique_lock lock(g_mutex);
  if (g_kinds.count(49) == 0) return;
  if (uint8_t *record = Record(49, lock)) {
    Put(record, 4, release ? 2u : 1u);
    Put(record, 8, kind);
    Put(record, 12, ++g_correlation);
    Put(record, 16, address);
    Put(record, 24, bytes);
    Put(record, 32, Now());
    Put(record, 52, uint32_t{1});
    Put(record, 60, uint32_t{9});
  }
}

void PoolEvent(uint64_t address, uint64_t bytes, uint32_t operation) {
  std::unique_lock lock(g_mutex);
  if (g_kinds.count(50) == 0) return;
  if (uint8_t *record = Record(50, lock)) {
    Put(record, 4, operation);
    Put(record, 20, uint32_t{1});
    Put(record, 32, address);
    Put(record, 40, bytes);
    Put(record, 56, Now());
  }
}

void Unknown() {
  std::unique_lock lock(g_mutex);
  if (uint8_t *record = Record(kUnknownKind, lock))
    memset(record + 4, 0xff, kUnknownBytes - 4);
}

void OverheadRecord(uint64_t ns) {
  std::unique_lock lock(g_mutex);
  if (g_kinds.count(17) == 0) return;
  if (uint8_t *record = Record(17, lock)) {
    if (kLayout != 130) return;
    Put(record, 24, uint64_t{1000});
    Put(record, 32, uint64_t{1000} + ns);
    Put(record, 48, malloc(32));  // the client frees it
  }
}

void Synchronize() {
  std::unique_lock lock(g_mutex);
  for (Buffer &buffer : g_buffers) {
    for (uint8_t *record : buffer.running) Put(record, 24, DeviceNow());
    buffer.running.clear();
  }
}

void ReturnForeignBuffer() {
  alignas(8) static uint8_t buffer[1 << 12];
  Put(buffer, 0, kUnknownKind);
  g_completed(nullptr, 0, buffer, sizeof buffer, kUnknownBytes);
}

int Entered() {
  ++g_fake.calls;
  return g_fake.no_driver;
}

int Flush(uint32_t flag) {
  std::unique_lock lock(g_mutex);
  if (const int failed = Entered()) return failed;
  ++(flag != 0 ? g_fake.forced_flushes : g_fake.plain_flushes);
  std::vector<Buffer> ready = std::exchange(g_full, {});
  std::deque<Buffer> kept;
  for (Buffer &buffer : g_buffers) {
    if (flag == 0 && !buffer.running.empty())
      kept.push_back(std::move(buffer));
    else
      ready.push_back(std::move(buffer));
  }
  g_buffers = std::move(kept);
  DeliverWithout(lock, std::move(ready));
  return 0;
}

}  // namespace

extern "C" {

FakeCupti *FakeCuptiHandle() {
  if (g_fake.Launch == nullptr) {
    g_fake.version = kLayout == 118 ? 18 : kLayout == 120 ? 24 : 130001;
    g_fake.clock = DefaultClock;
    g_fake.attribute[0] = 3200000;
    g_fake.attribute[2] = 250;
    g_fake.attribute[6] = 3;
    g_fake.attribute[9] = kLayout == 130 ? 1 : 0;
    g_fake.Launch = Launch;
    g_fake.LaunchGraph = LaunchGraph;
    g_fake.Copy = Copy;
    g_fake.Peer = Peer;
    g_fake.Set = Set;
    g_fake.Memory = Memory;
    g_fake.Pool = PoolEvent;
    g_fake.Unknown = Unknown;
    g_fake.Overhead = OverheadRecord;
    g_fake.Synchronize = Synchronize;
    g_fake.TakeClockPair = TakeClockPair;
    g_fake.ReturnForeignBuffer = ReturnForeignBuffer;
  }
  return &g_fake;
}

// For callers that cannot use the C++ interface.
uint32_t FakeCuptiLaunch(const char *name, uint64_t dur_ns) {
  return Launch(name, dur_ns, /*running=*/false);
}

int cuptiGetVersion(uint32_t *version) {
  *version = FakeCuptiHandle()->version;
  return 0;
}

int cuptiSubscribe(void **subscriber,
                   void (*)(void *, uint32_t, uint32_t, const void *), void *) {
  std::unique_lock lock(g_mutex);
  if (const int failed = Entered()) return failed;
  ++g_fake.subscribes;
  if (g_fake.subscribe_result != 0) return g_fake.subscribe_result;
  if (g_subscribed || g_fake.holder[0] != 0) return kMultiple;
  g_subscribed = true;
  *subscriber = &g_subscribed;
  return 0;
}

int cuptiUnsubscribe(void *subscriber) {
  std::unique_lock lock(g_mutex);
  if (const int failed = Entered()) return failed;
  if (subscriber != &g_subscribed || !g_subscribed) return kInvalidParameter;
  ++g_fake.unsubscribes;
  g_subscribed = false;
  if (g_fake.interpolates) TakeClockPair(0);
  return 0;
}

#if REPRISE_FAKE_LAYOUT == 130
struct SubscriberParams {
  size_t size;
  const char *name;
  char *holder;
  size_t holder_bytes;
};
int cuptiSubscribe_v2(void **,
                      void (*)(void *, uint32_t, uint32_t, const void *),
                      void *, SubscriberParams *params) {
  std::unique_lock lock(g_mutex);
  if (const int failed = Entered()) return failed;
  if (g_fake.holder[0] == 0) return kInvalidParameter;
  strncpy(params->holder, g_fake.holder, params->holder_bytes);
  return kMultiple;
}
#endif

int cuptiActivityRegisterCallbacks(Requested requested, Completed completed) {
  std::unique_lock lock(g_mutex);
  ++g_fake.calls;
  g_requested = requested;
  g_completed = completed;
  return 0;
}

int cuptiActivityEnable(uint32_t kind) {
  std::unique_lock lock(g_mutex);
  if (const int failed = Entered()) return failed;
  if (kind >= 64 || SizeOf(kind) == 0) return kInvalidKind;
  if (g_fake.enable_result[kind] != 0) return g_fake.enable_result[kind];
  g_kinds.insert(kind);
  g_fake.enabled_kinds = static_cast<uint32_t>(g_kinds.size());
  return 0;
}

int cuptiActivityDisable(uint32_t kind) {
  std::unique_lock lock(g_mutex);
  if (const int failed = Entered()) return failed;
  g_kinds.erase(kind);
  g_fake.enabled_kinds = static_cast<uint32_t>(g_kinds.size());
  return 0;
}

int cuptiActivityFlushAll(uint32_t flag) { return Flush(flag); }
int cuptiActivityFlushPeriod(uint32_t) {
  g_fake.period_set = true;
  return 0;
}
int cuptiFinalize() {
  g_fake.finalized = true;
  return 0;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid,
                               uint8_t **record) {
  uint8_t *next = buffer;
  if (*record != nullptr) {
    uint32_t kind;
    memcpy(&kind, *record, sizeof kind);
    if (SizeOf(kind) == 0) return kInvalidKind;
    next = *record + SizeOf(kind);
  }
  if (next >= buffer + valid) return kMaxLimit;
  *record = next;
  return 0;
}

int cuptiActivityGetNumDroppedRecords(void *, uint32_t, size_t *dropped) {
  std::unique_lock lock(g_mutex);
  *dropped = std::exchange(g_dropped, size_t{0});
  return 0;
}

int cuptiActivityGetAttribute(uint32_t attribute, size_t *size, void *value) {
  if (const int failed = Entered()) return failed;
  if (attribute >= 16) return kInvalidParameter;
  memcpy(value, &g_fake.attribute[attribute], *size);
  return 0;
}

int cuptiActivitySetAttribute(uint32_t attribute, size_t *size, void *value) {
  if (const int failed = Entered()) return failed;
  if (attribute >= 16) return kInvalidParameter;
  g_fake.attribute[attribute] = 0;
  memcpy(&g_fake.attribute[attribute], value, *size);
  return 0;
}

int cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id) {
  if (g_fake.no_driver != 0) return g_fake.no_driver;
  Stack()[kind].push_back(id);
  return 0;
}

int cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *last) {
  if (g_fake.no_driver != 0) return g_fake.no_driver;
  std::vector<uint64_t> &ids = Stack()[kind];
  if (ids.empty()) {
    ++g_fake.pops_of_nothing;
    return kQueueEmpty;
  }
  *last = ids.back();
  ids.pop_back();
  return 0;
}

int cuptiActivityRegisterTimestampCallback(uint64_t (*clock)()) {
  ++g_fake.calls;
  if (g_fake.no_clock) return 14;
  // Pairs of another clock are forgotten: torch's profiler registers its own in
  // the middle of a process, and its times are right.
  if (clock != g_fake.clock) g_pair.reset();
  g_fake.clock = clock;
  return 0;
}

// Exists from CUDA 12.5 on.
#if REPRISE_FAKE_LAYOUT == 130
int cuptiActivityEnableRuntimeApi(uint32_t cbid, uint8_t enable) {
  std::unique_lock lock(g_mutex);
  if (const int failed = Entered()) return failed;
  enable != 0 ? (void)g_calls[5].insert(cbid) : (void)g_calls[5].erase(cbid);
  return 0;
}
int cuptiActivityEnableDriverApi(uint32_t cbid, uint8_t enable) {
  std::unique_lock lock(g_mutex);
  if (const int failed = Entered()) return failed;
  enable != 0 ? (void)g_calls[4].insert(cbid) : (void)g_calls[4].erase(cbid);
  return 0;
}
#endif

#if REPRISE_FAKE_LAYOUT == 130
int cuptiActivityEnableHWTrace(uint8_t) {
  g_fake.hardware_events = true;
  return 0;
}
#endif

int cuptiGetThreadIdType(uint32_t *type) {
  *type = g_fake.thread_id_type;
  return 0;
}
int cuptiSetThreadIdType(uint32_t type) {
  g_fake.thread_id_type = type;
  return 0;
}

}  // extern "C"
