// SPDX-License-Identifier: Apache-2.0
//
// The reading end of one agent's ring (the layout is in reprise_wire.h).
//
//            tail                           head
//              │  committed later             │
//   ───────────┼──────────┬───────────────────┼───────▶ positions
//    released  │ Peek'ed  │ published or torn  │ free
//
// The reader keeps its own slot count and position and believes the shared
// header only this much: head - position <= slots. Peek copies; Release frees
// the slots, and must be called only after what was copied is committed.
//
// A daemon may die anywhere, so Attach repairs: `tail` is stored before the
// slots below it are freed, hence slots that were committed but not freed are
// found, by their sequence, in the `slots` positions below the committed one.
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
  // `committed`: the position up to which a spool holds this ring's records;
  // absent where no spool knows the session: then the header's tail.
  // INVALID_ARGUMENT: the header contradicts itself, `slots` or `committed`.
  static StatusOr<RingReader> Attach(MappedRing ring, uint32_t slots,
                                     std::optional<uint64_t> committed);

  const MemfdIdentity& identity() const { return identity_; }

  // Every position below is committed.
  uint64_t position() const { return position_; }

  // Positions reserved and not committed. DATA_LOSS: `head` moved by more than
  // the ring holds, so somebody scribbled into the header.
  StatusOr<uint64_t> Backlog() const;

  struct Batch {
    size_t records = 0;      // copied to `out`
    uint64_t positions = 0;  // to be released, torn ones included
    uint64_t torn = 0;       // reserved, never published
  };

  // Copies published records from position() on, up to the first that is not
  // published yet. With `writer_gone` that one and its like are torn, and the
  // walk goes on to head. Errors as Backlog.
  StatusOr<Batch> Peek(std::span<reprise_slot> out, bool writer_gone) const;

  // Frees the next `positions` slots for the writers.
  void Release(uint64_t positions);

  // The writers' own counts, at most 2^62 each.
  uint64_t head() const;
  uint64_t dropped() const;

  // Where the writer was, in its own words: nothing of it is checked.
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
