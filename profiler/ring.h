// The hot path: fixed records into a ring that outlives the process.
//
// The protocol between writers and the reader is drawn in reprise_wire.h; this
// is the writers' side. A push takes no lock and allocates nothing. When the
// ring is full the record is dropped and counted, and as soon as there is room
// again one LOSS record says how many were lost, and when:
//
//   records pushed successfully + sum of LOSS counts = records offered
//
// The collector can write into the shared part at any time, so nothing read
// from it is used as an address or as a number of turns: positions are masked
// with the private `mask`, and a push gives up after a bounded number of turns.
//
// A ring is never unmapped: a push in another thread may still hold a pointer
// to it. Retiring one puts private zero pages over it instead, in which a late
// push harmlessly finishes.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/include/reprise_wire.h"

namespace reprise::profiler {

// One private page in front of the shared mapping.
struct Ring {
  reprise_ring_header *header;
  reprise_slot *slots;
  uint64_t mask;
  uint32_t slot_count;
  uint32_t
      own_reader;  // atomic. The file sink: this process drains the ring itself

  // Not yet reported losses. Atomic.
  alignas(64) uint64_t loss_count;
  uint64_t loss_first_ns, loss_last_ns;
};

// Two sessions on the same addresses: their pushes are ordered by the mapping
// call in between, which ThreadSanitizer cannot know.
#ifdef __SANITIZE_THREAD__
constexpr bool kReuseRings = false;
#else
constexpr bool kReuseRings = true;
#endif

// Creates the sealed memfd and maps it; `spare` is reused when it has the same
// size. Returns nullptr with a sentence in `why` when the system refuses.
Ring *CreateRing(uint32_t slots, Ring *spare, int *fd, char *why,
                 size_t why_bytes);

// Detaches the shared pages. The mapping stays valid for late pushes.
void RetireRing(Ring *ring);

// Copies the record's bytes 8..63 into the ring. False: it is full.
bool TryPush(Ring *ring, const reprise_slot &record, uint64_t *position);

// Pushes, or drops and counts. Returns true now and then when `own_reader` is
// set and the ring is more than half full: time to spill.
bool Push(Ring *ring, const reprise_slot &record);

inline bool HasLosses(const Ring *ring) {
  return __atomic_load_n(&ring->loss_count, __ATOMIC_RELAXED) != 0;
}
// Reports pending losses if there is room.
void PushLosses(Ring *ring);

// Makes the counters in the header current.
void PublishCounters(Ring *ring);

uint64_t PushedRecords(const Ring *ring);
uint64_t DroppedRecords(const Ring *ring);
// Everything below this position is committed by the reader.
uint64_t CommittedRecords(const Ring *ring);

}  // namespace reprise::profiler
