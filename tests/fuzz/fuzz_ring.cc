// SPDX-License-Identifier: Apache-2.0
//
// A ring written by a hostile agent: its header, then slots. The chunks made
// from it must be valid, whatever the slots hold, and match the reader's
// counts.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/fd.h"
#include "reprise/v1/ingest.pb.h"
#include "server/collect/chunk_builder.h"
#include "server/collect/ring_reader.h"
#include "server/ingest/chunk_check.h"
#include "tests/fuzz/harness.h"

namespace {

using namespace reprise::server;
using reprise::Fd;

constexpr uint32_t kSlots = REPRISE_RING_MIN_SLOTS;
constexpr size_t kBytes =
    REPRISE_RING_HEADER_BYTES + size_t{kSlots} * REPRISE_SLOT_BYTES;

// Makes a ring: the input overwrites the header's 256 bytes, then the slots
// from the first on; the rest is as in a new ring.
Fd MakeRing(const uint8_t* data, size_t size) {
  Fd file(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REPRISE_FUZZ_CHECK(file.valid());
  REPRISE_FUZZ_CHECK(ftruncate(file.get(), kBytes) == 0);
  void* memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  REPRISE_FUZZ_CHECK(memory != MAP_FAILED);
  auto* bytes = static_cast<uint8_t*>(memory);
  for (uint64_t i = 0; i < kSlots; ++i) {
    std::memcpy(bytes + REPRISE_RING_HEADER_BYTES + i * REPRISE_SLOT_BYTES, &i,
                sizeof(i));
  }
  const size_t header = std::min(size, sizeof(reprise_ring_header));
  std::memcpy(bytes, data, header);
  std::memcpy(bytes + REPRISE_RING_HEADER_BYTES, data + header,
              std::min(size - header, kBytes - REPRISE_RING_HEADER_BYTES));
  munmap(memory, kBytes);
  REPRISE_FUZZ_CHECK(fcntl(file.get(), F_ADD_SEALS,
                           F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  return file;
}

void CheckChunks(const Built& built) {
  uint64_t seq = 0;
  for (reprise::v1::Chunk chunk : built.chunks) {
    chunk.set_seq(++seq);
    // The server must accept every chunk that the collector makes.
    REPRISE_FUZZ_CHECK(CheckChunk(chunk).ok());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto mapped = MapRing(MakeRing(data, size), kSlots);
  REPRISE_FUZZ_CHECK(mapped.ok());
  auto reader = RingReader::Attach(*std::move(mapped), kSlots, std::nullopt);
  if (!reader.ok()) return 0;
  std::vector<reprise_slot> slots(512);
  const NameTable names;
  OpJoin join;
  for (int turn = 0; turn < 10; ++turn) {
    const auto batch = reader->Peek(slots, /*writer_gone=*/turn % 2 == 1);
    if (!batch.ok()) return 0;
    REPRISE_FUZZ_CHECK(batch->records <= slots.size());
    REPRISE_FUZZ_CHECK(batch->positions >= batch->records);
    for (size_t i = 0; i < batch->records; ++i) {
      reprise_slot slot = slots[i];
      reprise_slot copy;
      if (const auto* fixed = OnClock(slot, 0, copy)) join.Take(*fixed);
    }
    const Built built =
        BuildChunks({.records = std::span(slots).first(batch->records),
                     .names = &names,
                     .join = &join,
                     .last = turn == 9});
    REPRISE_FUZZ_CHECK(built.used == batch->records);
    CheckChunks(built);
    (void)join.Measure();
    if (batch->positions == 0) break;
    reader->Release(batch->positions);
  }
  return 0;
}
