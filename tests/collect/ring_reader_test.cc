// SPDX-License-Identifier: Apache-2.0
#include "server/collect/ring_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "tests/collect/raw_agent.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kSlots = REPRISE_RING_MIN_SLOTS;

StatusOr<RingReader> Attach(const RawAgent& agent,
                            std::optional<uint64_t> committed = std::nullopt) {
  ASSIGN_OR_RETURN(MappedRing ring, MapRing(Fd(dup(agent.ring_fd())), kSlots));
  return RingReader::Attach(std::move(ring), kSlots, committed);
}

std::vector<uint64_t> Read(RingReader& reader, bool writer_gone = false) {
  std::vector<reprise_slot> out(kSlots);
  auto batch = reader.Peek(out, writer_gone);
  EXPECT_TRUE(batch.ok());
  std::vector<uint64_t> addresses;
  for (size_t i = 0; i < batch->records; ++i) {
    addresses.push_back(out[i].body.alloc.address);
  }
  reader.Release(batch->positions);
  return addresses;
}

TEST(RingReaderTest, ReadsWhatWasPushedInOrderAndOnce) {
  RawAgent agent;
  auto reader = Attach(agent);
  ASSERT_TRUE(reader.ok());

  agent.PushAlloc(7);
  agent.PushAlloc(8);

  EXPECT_THAT(Read(*reader), testing::ElementsAre(7, 8));
  EXPECT_THAT(Read(*reader), testing::IsEmpty());
  EXPECT_EQ(agent.header()->tail, 2u);
}

TEST(RingReaderTest, FreesSlotsOnlyWhenReleased) {
  RawAgent agent;
  auto reader = Attach(agent);
  for (uint64_t i = 0; i < kSlots; ++i) ASSERT_TRUE(agent.PushAlloc(i));
  std::vector<reprise_slot> out(10);

  auto batch = reader->Peek(out, false);
  EXPECT_FALSE(agent.PushAlloc(1)) << "the ring is still full";
  reader->Release(batch->positions);

  for (int i = 0; i < 10; ++i) EXPECT_TRUE(agent.PushAlloc(1));
  EXPECT_FALSE(agent.PushAlloc(1));
}

TEST(RingReaderTest, WaitsAtAnUnpublishedSlotUntilItsWriterIsGone) {
  RawAgent agent;
  auto reader = Attach(agent);
  agent.PushAlloc(1);
  agent.Tear();
  agent.PushAlloc(3);

  EXPECT_THAT(Read(*reader), testing::ElementsAre(1));
  std::vector<reprise_slot> out(8);
  auto batch = reader->Peek(out, /*writer_gone=*/true);

  EXPECT_EQ(batch->torn, 1u);
  EXPECT_EQ(batch->records, 1u);
  EXPECT_EQ(batch->positions, 2u);
  EXPECT_EQ(out[0].body.alloc.address, 3u);
}

TEST(RingReaderTest, GoesOnFromTheCommittedPositionAndRepairsTheSlots) {
  // The daemon died after its commit and before it freed a slot. The next one
  // must neither read these records again nor leave their slots taken for ever.
  RawAgent agent;
  for (uint64_t i = 0; i < 100; ++i) agent.PushAlloc(i);

  auto reader = Attach(agent, 60);

  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(agent.header()->tail, 60u);
  EXPECT_EQ(Read(*reader).front(), 60u);
  for (uint64_t i = 0; i < kSlots; ++i) ASSERT_TRUE(agent.PushAlloc(i));
}

TEST(RingReaderTest, RepairsSlotsThatWereNotFreedAfterTheTailWasStored) {
  RawAgent agent;
  for (uint64_t i = 0; i < kSlots; ++i) agent.PushAlloc(i);
  agent.header()->tail = 50;  // died here, before any slot was freed

  auto reader = Attach(agent, 50);

  ASSERT_TRUE(reader.ok());
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(agent.PushAlloc(1));
  EXPECT_FALSE(agent.PushAlloc(1));
}

TEST(RingReaderTest, LeavesSlotsAloneThatAreInUseAgain) {
  RawAgent agent;
  {
    auto first = Attach(agent);
    for (uint64_t i = 0; i < kSlots; ++i) agent.PushAlloc(i);
    Read(*first);
  }
  agent.PushAlloc(4711);  // at position kSlots, in slot 0

  auto second = Attach(agent, kSlots);

  ASSERT_TRUE(second.ok());
  EXPECT_THAT(Read(*second), testing::ElementsAre(4711));
}

TEST(RingReaderTest, RefusesAHeadThatJumps) {
  RawAgent agent;
  auto reader = Attach(agent);
  agent.header()->head = kSlots + 1;

  EXPECT_EQ(reader->Backlog().status().code(), Code::kDataLoss);
  agent.header()->head = UINT64_MAX;
  EXPECT_EQ(reader->Backlog().status().code(), Code::kDataLoss);
}

TEST(RingReaderTest, TakesSequenceGarbageForUnpublished) {
  RawAgent agent;
  auto reader = Attach(agent);
  agent.PushAlloc(1);
  agent.slot(0)->sequence = 0xdeadbeef;

  EXPECT_THAT(Read(*reader), testing::IsEmpty());
  std::vector<reprise_slot> out(8);
  EXPECT_EQ(reader->Peek(out, true)->torn, 1u);
}

TEST(RingReaderTest, RefusesAHeaderThatContradictsTheSpool) {
  RawAgent agent;
  for (uint64_t i = 0; i < 10; ++i) agent.PushAlloc(i);
  agent.header()->tail = 5;

  EXPECT_FALSE(Attach(agent, 4).ok()) << "released more than was committed";
  EXPECT_FALSE(Attach(agent, 11).ok()) << "committed more than was reserved";
  agent.header()->slots = 8192;
  EXPECT_THAT(Attach(agent, 5).status().message(), HasSubstr("8192"));
  agent.header()->slots = kSlots;
  agent.header()->magic = 0;
  EXPECT_FALSE(Attach(agent, 5).ok());
}

TEST(RingReaderTest, KeepsUpWithFourWritersWithoutLossOrDoubling) {
  RawAgent agent;
  auto reader = Attach(agent);
  constexpr uint64_t kEach = 20'000;
  std::vector<std::thread> writers;
  for (uint64_t w = 0; w < 4; ++w) {
    writers.emplace_back([&agent, w] {
      for (uint64_t i = 0; i < kEach; ++i) {
        while (!agent.PushAlloc(w * kEach + i)) std::this_thread::yield();
      }
    });
  }

  std::vector<int> seen(4 * kEach);
  for (uint64_t total = 0; total < 4 * kEach;) {
    for (const uint64_t address : Read(*reader)) {
      ++seen[address];
      ++total;
    }
  }
  for (std::thread& writer : writers) writer.join();

  EXPECT_THAT(seen, testing::Each(1));
}

// ---- What MapRing refuses ----

TEST(MapRingTest, RefusesASlotCountThatIsNoPowerOfTwoOrOutOfRange) {
  RawAgent agent;
  for (const uint32_t slots : {0u, 1u, 4095u, 5000u, 2048u, 1u << 21}) {
    EXPECT_FALSE(MapRing(Fd(dup(agent.ring_fd())), slots).ok()) << slots;
  }
}

TEST(MapRingTest, RefusesASizeThatIsNotTheAnnouncedOne) {
  RawAgent agent;
  EXPECT_THAT(MapRing(Fd(dup(agent.ring_fd())), 8192).status().message(),
              HasSubstr("8192 slots need"));
}

TEST(MapRingTest, RefusesMissingSealsAndFilesThatAreNoMemfds) {
  const std::string bytes(REPRISE_RING_HEADER_BYTES + kSlots * 64, '\0');
  EXPECT_FALSE(MapRing(Fd(TestMemfd(bytes, 0)), kSlots).ok());
  EXPECT_FALSE(
      MapRing(Fd(TestMemfd(bytes, F_SEAL_SHRINK | F_SEAL_SEAL)), kSlots).ok());
  EXPECT_FALSE(MapRing(Fd(open("/dev/null", O_RDWR)), kSlots).ok());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd writer(ends[1]);
  EXPECT_FALSE(MapRing(Fd(ends[0]), kSlots).ok());
}

TEST(MapSealedTest, NeedsAllFourSealsTheExactSizeAndTheCap) {
  EXPECT_TRUE(MapSealed(Fd(TestMemfd("abc", kAllSeals)), 3, 10, "graph").ok());
  EXPECT_FALSE(
      MapSealed(Fd(TestMemfd("abc", kAllSeals & ~F_SEAL_WRITE)), 3, 10, "graph")
          .ok());
  EXPECT_FALSE(MapSealed(Fd(TestMemfd("abc", kAllSeals)), 4, 10, "graph").ok());
  EXPECT_FALSE(MapSealed(Fd(TestMemfd("abc", kAllSeals)), 3, 2, "graph").ok());
  EXPECT_FALSE(MapSealed(Fd(TestMemfd("", kAllSeals)), 0, 10, "graph").ok());
}

}  // namespace
}  // namespace reprise::server
