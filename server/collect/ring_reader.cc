// SPDX-License-Identifier: Apache-2.0
#include "server/collect/ring_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

constexpr uint64_t kLargestRingCount = uint64_t{1} << 62;

uint64_t Load(const uint64_t& shared) {
  return __atomic_load_n(&shared, __ATOMIC_ACQUIRE);
}
void Store(uint64_t& shared, uint64_t value) {
  __atomic_store_n(&shared, value, __ATOMIC_RELEASE);
}

}  // namespace

RingReader::RingReader(MappedRing ring, uint32_t slots)
    : mapping_(std::move(ring.mapping)),
      identity_(ring.identity),
      slots_(slots) {}

reprise_ring_header* RingReader::header() const {
  return reinterpret_cast<reprise_ring_header*>(mapping_.data());
}

reprise_slot* RingReader::slot(uint64_t position) const {
  auto* first = reinterpret_cast<reprise_slot*>(mapping_.data() +
                                                REPRISE_RING_HEADER_BYTES);
  return first + (position & (slots_ - 1));
}

StatusOr<RingReader> RingReader::Attach(MappedRing ring, uint32_t slots,
                                        std::optional<uint64_t> committed) {
  RingReader reader(std::move(ring), slots);
  reprise_ring_header header;
  std::memcpy(&header, reader.header(), sizeof(header));
  if (header.magic != REPRISE_WIRE_MAGIC ||
      header.layout != REPRISE_RING_LAYOUT ||
      header.header_bytes != REPRISE_RING_HEADER_BYTES) {
    return InvalidArgument("ring: its header is not one of this layout");
  }
  if (header.slots != slots) {
    return InvalidArgument(StrCat("ring: hello says ", slots,
                                  " slots, its header ", header.slots));
  }
  const uint64_t tail = Load(reader.header()->tail);
  const uint64_t head = Load(reader.header()->head);
  const uint64_t position = committed.value_or(tail);
  if (tail > position || head < position || head - position > slots ||
      head > kLargestRingCount) {
    return InvalidArgument(StrCat("ring: head ", head, " and tail ", tail,
                                  " do not go on from position ", position,
                                  "; start a new session"));
  }
  reader.position_ = position;
  Store(reader.header()->tail, position);
  const uint64_t first = position > slots ? position - slots : 0;
  for (uint64_t p = first; p < position; ++p) {
    uint64_t& sequence = reader.slot(p)->sequence;
    if (Load(sequence) == p + 1) Store(sequence, p + slots);
  }
  return reader;
}

uint64_t RingReader::head() const {
  return std::min(Load(header()->head), kLargestRingCount);
}

uint64_t RingReader::dropped() const {
  return std::min(Load(header()->dropped), kLargestRingCount);
}

reprise_place RingReader::place() const {
  const reprise_place& shared = header()->place;
  reprise_place copy{};
  copy.step = Load(shared.step);
  copy.step_ns = Load(shared.step_ns);
  copy.graph_id = Load(shared.graph_id);
  copy.plan_id = Load(shared.plan_id);
  copy.op = Load(shared.op);
  copy.phase = Load(shared.phase);
  return copy;
}

StatusOr<uint64_t> RingReader::Backlog() const {
  const uint64_t backlog = Load(header()->head) - position_;
  if (backlog > slots_) {
    return Status(Code::kDataLoss,
                  StrCat("ring: head is ", backlog, " ahead of position ",
                         position_, ", but there are ", slots_, " slots"));
  }
  return backlog;
}

StatusOr<RingReader::Batch> RingReader::Peek(std::span<reprise_slot> out,
                                             bool writer_gone) const {
  ASSIGN_OR_RETURN(const uint64_t backlog, Backlog());
  Batch batch;
  while (batch.positions < backlog && batch.records < out.size()) {
    const uint64_t p = position_ + batch.positions;
    const reprise_slot* shared = slot(p);
    if (Load(shared->sequence) == p + 1) {
      // Only the copy is checked, because a hostile writer may change the slot
      // at any time (ScribblingWhileReadSpoilsOnlyItsOwnSession).
      std::memcpy(&out[batch.records++], shared, sizeof(reprise_slot));
    } else if (writer_gone) {
      ++batch.torn;
    } else {
      break;
    }
    ++batch.positions;
  }
  return batch;
}

void RingReader::Release(uint64_t positions) {
  const uint64_t first = position_;
  position_ += positions;
  Store(header()->tail, position_);
  for (uint64_t p = first; p < position_; ++p) {
    Store(slot(p)->sequence, p + slots_);
  }
}

}  // namespace reprise::server
