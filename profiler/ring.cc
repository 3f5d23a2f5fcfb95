#include "profiler/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "profiler/clock.h"
#include "profiler/open_file.h"

namespace reprise::profiler {
namespace {

constexpr size_t kPrivateBytes = 4096;
static_assert(sizeof(Ring) <= kPrivateBytes, "Ring fits its page");

// Bounds the attempts of a push. Each lost race means that another writer made
// progress, so a sound ring never comes close; with a corrupted one the push
// costs about ten microseconds.
constexpr int kMaxTurns = 1000;

// Pushes between two checks whether the sink should spill.
constexpr uint64_t kSpillCheck = 1024;

size_t SharedBytes(uint32_t slots) {
  return REPRISE_RING_HEADER_BYTES +
         static_cast<size_t>(slots) * REPRISE_SLOT_BYTES;
}

template <typename T>
T Load(const T *word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

// Maps pages over a range to which late pushes may still write. Uses the system
// call because sanitizers treat mmap() as a write to all of the range.
bool MapOver(void *start, size_t bytes, int flags, int fd) {
  return syscall(SYS_mmap, start, bytes, PROT_READ | PROT_WRITE,
                 flags | MAP_FIXED, fd, 0) != -1;
}

void CountDrop(Ring *ring, uint64_t ts_ns) {
  __atomic_fetch_add(&ring->header->dropped, uint64_t{1}, __ATOMIC_RELAXED);
  uint64_t none = 0;
  __atomic_compare_exchange_n(&ring->loss_first_ns, &none, ts_ns, false,
                              __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  __atomic_store_n(&ring->loss_last_ns, ts_ns, __ATOMIC_RELAXED);
  __atomic_fetch_add(&ring->loss_count, uint64_t{1}, __ATOMIC_RELEASE);
}

// Returns whether two slots are free. A single free slot is left to the next
// record: a LOSS record in it would displace that record, and every second slot
// of a full ring would become a LOSS.
bool RoomForTwo(const Ring *ring) {
  const uint64_t next = Load(&ring->header->head) + 1;
  return __atomic_load_n(&ring->slots[next & ring->mask].sequence,
                         __ATOMIC_ACQUIRE) == next;
}

}  // namespace

Ring *CreateRing(uint32_t slots, Ring *spare, int *fd, char *why,
                 size_t why_bytes) {
  const size_t shared_bytes = SharedBytes(slots);
  const int file = CreateMemfd("reprise-ring");
  if (file < 0 || ftruncate(file, static_cast<off_t>(shared_bytes)) != 0 ||
      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
          0) {
    snprintf(why, why_bytes,
             "ring: cannot create a sealed memfd of %zu bytes: %s",
             shared_bytes, strerror(errno));
    if (file >= 0) close(file);
    return nullptr;
  }

  uint8_t *base = reinterpret_cast<uint8_t *>(spare);
  if (spare == nullptr || spare->slot_count != slots) {
    void *memory =
        mmap(nullptr, kPrivateBytes + shared_bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base = memory == MAP_FAILED ? nullptr : static_cast<uint8_t *>(memory);
  }
  if (base == nullptr ||
      !MapOver(base + kPrivateBytes, shared_bytes, MAP_SHARED, file)) {
    snprintf(why, why_bytes, "ring: cannot map %zu bytes: %s", shared_bytes,
             strerror(errno));
    if (base != nullptr && base != reinterpret_cast<uint8_t *>(spare))
      munmap(base, kPrivateBytes + shared_bytes);
    close(file);
    return nullptr;
  }
  madvise(base, kPrivateBytes + shared_bytes, MADV_DONTFORK);

  Ring *ring = reinterpret_cast<Ring *>(base);
  // Written one by one, atomically: a late push of the previous session may be
  // reading them.
  uint64_t *const losses[] = {&ring->loss_count, &ring->loss_first_ns,
                              &ring->loss_last_ns};
  for (uint64_t *word : losses)
    __atomic_store_n(word, uint64_t{0}, __ATOMIC_RELAXED);
  __atomic_store_n(&ring->own_reader, 0u, __ATOMIC_RELAXED);
  ring->header = reinterpret_cast<reprise_ring_header *>(base + kPrivateBytes);
  ring->slots = reinterpret_cast<reprise_slot *>(base + kPrivateBytes +
                                                 REPRISE_RING_HEADER_BYTES);
  ring->mask = slots - 1;
  ring->slot_count = slots;
  ring->header->magic = REPRISE_WIRE_MAGIC;
  ring->header->layout = REPRISE_RING_LAYOUT;
  ring->header->slots = slots;
  ring->header->header_bytes = REPRISE_RING_HEADER_BYTES;
  for (uint64_t i = 0; i < slots; ++i)
    __atomic_store_n(&ring->slots[i].sequence, i, __ATOMIC_RELAXED);
  *fd = file;
  return ring;
}

void RetireRing(Ring *ring) {
  MapOver(ring->header, SharedBytes(ring->slot_count),
          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

bool TryPush(Ring *ring, const reprise_slot &record, uint64_t *position) {
  uint64_t p = Load(&ring->header->head);
  for (int turn = 0; turn < kMaxTurns; ++turn) {
    reprise_slot *slot = &ring->slots[p & ring->mask];
    const uint64_t sequence =
        __atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE);
    const int64_t ahead = static_cast<int64_t>(sequence - p);
    if (ahead < 0) return false;  // one lap behind: slot not yet freed
    if (ahead > 0) {
      p = Load(&ring->header->head);  // another writer took it
      continue;
    }
    // On failure p is set to the current head.
    if (!__atomic_compare_exchange_n(&ring->header->head, &p, p + 1, true,
                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      continue;
    constexpr size_t kAfter = sizeof slot->sequence;
    memcpy(reinterpret_cast<uint8_t *>(slot) + kAfter,
           reinterpret_cast<const uint8_t *>(&record) + kAfter,
           sizeof *slot - kAfter);
    __atomic_store_n(&slot->sequence, p + 1, __ATOMIC_RELEASE);
    *position = p;
    return true;
  }
  return false;
}

void PushLosses(Ring *ring) {
  const uint64_t count =
      __atomic_exchange_n(&ring->loss_count, uint64_t{0}, __ATOMIC_ACQUIRE);
  if (count == 0) return;

  reprise_slot record = {};
  record.kind = REPRISE_RECORD_LOSS;
  record.clock_id = REPRISE_CLOCK_MONOTONIC;
  record.ts_ns =
      __atomic_exchange_n(&ring->loss_first_ns, uint64_t{0}, __ATOMIC_RELAXED);
  record.body.loss.last_ts = Load(&ring->loss_last_ns);
  record.body.loss.count = count;
  record.body.loss.why = REPRISE_LOSS_RING_FULL;
  // Another thread may have counted its drop but not yet stored the time.
  if (record.ts_ns == 0) record.ts_ns = record.body.loss.last_ts;

  uint64_t position;
  if (TryPush(ring, record, &position)) return;
  uint64_t none = 0;
  __atomic_compare_exchange_n(&ring->loss_first_ns, &none, record.ts_ns, false,
                              __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  __atomic_fetch_add(&ring->loss_count, count, __ATOMIC_RELEASE);
}

bool Push(Ring *ring, const reprise_slot &record) {
  if (__builtin_expect(HasLosses(ring), 0) && RoomForTwo(ring))
    PushLosses(ring);

  uint64_t position = 0;
  if (__builtin_expect(!TryPush(ring, record, &position), 0)) {
    CountDrop(ring, record.ts_ns);
    return Load(&ring->own_reader) != 0;
  }
  return Load(&ring->own_reader) != 0 && position % kSpillCheck == 0 &&
         position - Load(&ring->header->tail) >= ring->slot_count / 2;
}

void PublishCounters(Ring *ring) {
  __atomic_store_n(&ring->header->pushed, Load(&ring->header->head),
                   __ATOMIC_RELAXED);
}

uint64_t PushedRecords(const Ring *ring) { return Load(&ring->header->head); }
uint64_t DroppedRecords(const Ring *ring) {
  return Load(&ring->header->dropped);
}
uint64_t CommittedRecords(const Ring *ring) {
  return __atomic_load_n(&ring->header->tail, __ATOMIC_ACQUIRE);
}

}  // namespace reprise::profiler
