// The hot path: fixed records into a ring that outlives the process.
//
// reprise_wire.h describes the protocol between writers and the reader; this is
// the writers' side. A push takes no lock and allocates nothing. When the ring
// is full, the record is dropped and counted. As soon as there is room again,
// one LOSS record says how many records were lost, and when:
//
//   records pushed successfully + sum of LOSS counts = records offered
//
// The collector can write to the shared part at any time. So nothing read from
// it is used as an address or as a loop count: positions are masked with the
// private `mask`, and a push gives up after a bounded number of attempts.
//
// A ring is never unmapped, because a push in another thread may still hold a
// pointer to it. Retiring a ring replaces its shared pages by private zero
// pages, on which a late push finishes harmlessly.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/include/reprise_wire.h"

namespace reprise::profiler {

// The writers' private state, on one page in front of the shared mapping.
struct Ring {
  reprise_ring_header *header;
  reprise_slot *slots;
  uint64_t mask;
  uint32_t slot_count;
  uint32_t own_reader;  // atomic. With a file sink this process drains the ring

  // Losses not yet reported. Atomic.
  alignas(64) uint64_t loss_count;
  uint64_t loss_first_ns, loss_last_ns;
};

// With reuse, two sessions use the same addresses. The mmap call in between
// orders their pushes, but ThreadSanitizer cannot know that.
#ifdef __SANITIZE_THREAD__
constexpr bool kReuseRings = false;
#else
constexpr bool kReuseRings = true;
#endif

// Creates the sealed memfd and maps it, over `spare` if that has the same size.
// Returns null with a sentence in `why` if the system refuses.
Ring *CreateRing(uint32_t slots, Ring *spare, int *fd, char *why,
                 size_t why_bytes);

// Detaches the shared pages. The addresses stay valid for late pushes.
void RetireRing(Ring *ring);

// Copies bytes 8..63 of the record into the ring. Returns false if it is full.
bool TryPush(Ring *ring, const reprise_slot &record, uint64_t *position);

// Pushes the record, or drops and counts it. With `own_reader` set,
// occasionally checks the fill level and returns true if the ring is more than
// half full: then the caller should spill it.
bool Push(Ring *ring, const reprise_slot &record);

inline bool HasLosses(const Ring *ring) {
  return __atomic_load_n(&ring->loss_count, __ATOMIC_RELAXED) != 0;
}
// Pushes a LOSS record for the pending losses if there is room.
void PushLosses(Ring *ring);

// Copies the private counters to the header.
void PublishCounters(Ring *ring);

uint64_t PushedRecords(const Ring *ring);
uint64_t DroppedRecords(const Ring *ring);
// Returns the position below which the reader has committed everything.
uint64_t CommittedRecords(const Ring *ring);

}  // namespace reprise::profiler
