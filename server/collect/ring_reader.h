// SPDX-License-Identifier: Apache-2.0
//
// The reader's side of one agent's ring (layout: reprise_wire.h).
//
//            tail                           head
//              │  committed later             │
//   ───────────┼──────────┬───────────────────┼───────▶ positions
//    released  │  peeked  │ published or torn │ free
//
// The reader keeps its own slot count and position, and of the shared header it
// relies only on head - position <= slots. Peek copies records; Release frees
// their slots, and must be called only after the copies are committed.
//
// A daemon may die at any point, so Attach repairs the ring: `tail` is stored
// before the slots below it are freed, so slots that were committed but not
// freed are found, by their sequence, in the `slots` positions below the
// committed one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "profiler/include/reprise_wire.h"
#include "server/collect/memfd.h"

namespace reprise::server {

class RingReader {
 public:
  // Attaches to a ring. `committed` is the position up to which a spool holds
  // its records; without it, the header's tail is used. INVALID_ARGUMENT: the
  // header contradicts itself, `slots` or `committed`.
  static StatusOr<RingReader> Attach(MappedRing ring, uint32_t slots,
                                     std::optional<uint64_t> committed);

  const MemfdIdentity& identity() const { return identity_; }

  // All positions below this one are committed.
  uint64_t position() const { return position_; }

  // Returns how many positions are reserved but not committed. DATA_LOSS:
  // `head` moved by more than the ring holds, so the header is corrupt.
  StatusOr<uint64_t> Backlog() const;

  struct Batch {
    size_t records = 0;      // copied to `out`
    uint64_t positions = 0;  // to be released, including torn ones
    uint64_t torn = 0;       // reserved but never published
  };

  // Copies published records from position() on, up to the first unpublished
  // one. With `writer_gone`, unpublished slots are torn, and Peek continues to
  // head. Errors are those of Backlog.
  StatusOr<Batch> Peek(std::span<reprise_slot> out, bool writer_gone) const;

  // Frees the next `positions` slots for the writers.
  void Release(uint64_t positions);

  // The writers' own counts, capped at 2^62.
  uint64_t head() const;
  uint64_t dropped() const;

  // The writer's progress as it stored it; unchecked.
  reprise_place place() const;

 private:
  RingReader(MappedRing ring, uint32_t slots);
  reprise_ring_header* header() const;
  reprise_slot* slot(uint64_t position) const;

  Mapping mapping_;
  MemfdIdentity identity_;
  uint64_t slots_ = 0;
  uint64_t position_ = 0;
};

}  // namespace reprise::server
