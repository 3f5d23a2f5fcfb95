// SPDX-License-Identifier: Apache-2.0
#include "server/collect/chunk_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/crc32c.h"
#include "profiler/include/reprise_agent.h"
#include "reprise/v1/ingest.pb.h"
#include "tests/collect/raw_agent.h"

namespace reprise::server {
namespace {

using ::testing::ElementsAre;

const NameTable kNoNames;

reprise_slot Record(uint16_t kind, uint64_t ts = 100, uint32_t thread = 1) {
  reprise_slot slot{};
  slot.kind = kind;
  slot.ts_ns = ts;
  slot.thread = thread;
  return slot;
}

reprise_slot StepDone(uint64_t step, uint32_t thread = 1) {
  reprise_slot slot = Record(REPRISE_RECORD_STEP_DONE, 500, thread);
  slot.body.step_done = {step, 0xab, 1000, 2000, REPRISE_STEP_PLANNED, 3};
  return slot;
}

reprise_slot StepMem(uint64_t step, uint32_t thread = 1) {
  reprise_slot slot = Record(REPRISE_RECORD_STEP_MEM, 501, thread);
  slot.body.step_mem = {step, 3000, 4000, 0xab, 7, 0};
  return slot;
}

reprise_slot Verify(uint32_t first_name) {
  reprise_slot slot = Record(REPRISE_RECORD_VERIFY);
  slot.body.verify = {9, 0xab, REPRISE_VERIFY_FAILED, 10, 1, first_name, 0};
  return slot;
}

Built Build(const std::vector<reprise_slot>& records,
            const std::vector<reprise_slot>& pending = {}) {
  return BuildChunks(
      {.records = records, .pending = pending, .names = &kNoNames});
}

v1::Columns ColumnsOf(const v1::Chunk& chunk) {
  v1::Columns columns;
  EXPECT_TRUE(columns.ParseFromString(chunk.body()));
  EXPECT_EQ(Crc32c(chunk.body()), chunk.crc32c());
  return columns;
}

TEST(BuildChunksTest, PutsARecordIntoColumnsAndLeavesZeroColumnsOut) {
  const Built built = Build({AllocRecord(0x1000, -64)});

  ASSERT_EQ(built.chunks.size(), 1u);
  const v1::Columns columns = ColumnsOf(built.chunks[0]);
  EXPECT_EQ(built.chunks[0].count(), 1u);
  EXPECT_THAT(columns.kind(), ElementsAre(REPRISE_RECORD_ALLOC));
  EXPECT_THAT(columns.ptr(), ElementsAre(0x1000u));
  EXPECT_THAT(columns.bytes(), ElementsAre(-64));
  EXPECT_EQ(columns.dur_ns_size(), 0);
  EXPECT_EQ(columns.name_size(), 0);
}

// Random records of every kind with values of every length, in full chunks and
// a partial one: the hand-written encoder writes the same bytes as protobuf.
TEST(BuildChunksTest, WritesByteByByteWhatProtobufWrites) {
  std::mt19937_64 random(7);
  std::vector<reprise_slot> records;
  for (int i = 0; i < 20000; ++i) {
    reprise_slot slot =
        Record(1 + random() % 16, random() >> (2 + random() % 62),
               static_cast<uint32_t>(random() >> random() % 64));
    uint64_t words[5];
    for (uint64_t& word : words) word = random() >> random() % 64;
    std::memcpy(&slot.body, words, sizeof words);
    if (random() % 4 == 0) slot.body = {};
    records.push_back(slot);
  }
  const Built built = Build(records);

  size_t rows = 0;
  for (const v1::Chunk& chunk : built.chunks) {
    const v1::Columns columns = ColumnsOf(chunk);
    EXPECT_EQ(columns.SerializeAsString(), chunk.body());
    EXPECT_EQ(columns.start_ns_size(), columns.kind_size());
    rows += static_cast<size_t>(columns.kind_size());
  }
  EXPECT_GT(built.chunks.size(), 1u);
  EXPECT_GT(rows, 5000u);
}

TEST(BuildChunksTest, CutsAfter4096Records) {
  const Built built = Build(std::vector(5000, AllocRecord(1)));

  ASSERT_EQ(built.chunks.size(), 2u);
  EXPECT_EQ(built.chunks[0].count(), 4096u);
  EXPECT_EQ(built.chunks[1].count(), 904u);
}

TEST(BuildChunksTest, NeverMakesAChunkAboveOneMebibyte) {
  // The longest report possible: its name has 512 bytes.
  NameTable names{{5, std::string(4096, 'x')}};
  const std::vector records(4096, Verify(5));

  const Built built = BuildChunks({.records = records, .names = &names});

  EXPECT_EQ(built.used, 4096u);
  EXPECT_GT(built.chunks.size(), 1u);
  for (const v1::Chunk& chunk : built.chunks) {
    EXPECT_LE(chunk.body().size(), 1u << 20);
  }
}

TEST(BuildChunksTest, JoinsTheHalvesOfAStepReportByThreadAndStep) {
  const Built built = Build({StepDone(1, 1), StepDone(1, 2), StepMem(1, 1)});

  ASSERT_EQ(built.chunks.size(), 1u);
  const v1::Columns columns = ColumnsOf(built.chunks[0]);
  EXPECT_EQ(built.chunks[0].count(), 0u) << "reports do not count";
  ASSERT_EQ(columns.steps_size(), 1);
  EXPECT_EQ(columns.steps(0).step(), 1u);
  EXPECT_EQ(columns.steps(0).plan_id(), "00000000000000ab");
  EXPECT_EQ(columns.steps(0).peak_bytes(), 2000);
  EXPECT_EQ(columns.steps(0).reserved_bytes(), 3000);
  EXPECT_EQ(columns.steps(0).recomputed(), 7u);
  EXPECT_EQ(columns.steps(0).end_ns(), 500);
  EXPECT_TRUE(columns.steps(0).planned());
  ASSERT_EQ(built.pending.size(), 1u);
  EXPECT_EQ(built.pending[0].thread, 2u);
}

TEST(BuildChunksTest, JoinsHalvesThatCameInDifferentBatches) {
  const Built first = Build({StepDone(4)});
  EXPECT_TRUE(first.chunks.empty());

  const Built second = Build({StepMem(4)}, first.pending);

  ASSERT_EQ(second.chunks.size(), 1u);
  EXPECT_EQ(ColumnsOf(second.chunks[0]).steps(0).device_bytes(), 4000);
  EXPECT_TRUE(second.pending.empty());
}

TEST(BuildChunksTest, ReportsAHalfStepAsIncompleteAtTheEnd) {
  const std::vector records{StepDone(4)};

  const Built built =
      BuildChunks({.records = records, .names = &kNoNames, .last = true});

  ASSERT_EQ(built.chunks.size(), 1u);
  EXPECT_TRUE(ColumnsOf(built.chunks[0]).steps(0).incomplete());
}

TEST(BuildChunksTest, StopsBeforeAReportWhoseNameMayStillCome) {
  const std::vector records{AllocRecord(1), Verify(17), AllocRecord(2)};

  const Built waiting = BuildChunks(
      {.records = records, .names = &kNoNames, .wait_for_names = true});
  EXPECT_TRUE(waiting.waits_for_name);
  EXPECT_EQ(waiting.used, 1u);

  const Built given_up = BuildChunks({.records = records, .names = &kNoNames});
  EXPECT_EQ(given_up.used, 3u);
  EXPECT_EQ(ColumnsOf(given_up.chunks[0]).checks(0).first_name(), "name #17");

  const NameTable names{{17, "layer.weight"}};
  const Built named = BuildChunks(
      {.records = records, .names = &names, .wait_for_names = true});
  EXPECT_EQ(ColumnsOf(named.chunks[0]).checks(0).first_name(), "layer.weight");
}

TEST(BuildChunksTest, CountsAndDatesLosses) {
  reprise_slot loss = Record(REPRISE_RECORD_LOSS, 100);
  loss.body.loss.last_ts = 150;
  loss.body.loss.count = 42;

  const Built built = Build({AllocRecord(1), loss});

  EXPECT_EQ(built.dropped, 42u);
  EXPECT_EQ(built.chunks[0].dropped_before(), 42u);
  const v1::Columns columns = ColumnsOf(built.chunks[0]);
  EXPECT_EQ(columns.start_ns(1), 100u);
  EXPECT_EQ(columns.dur_ns(1), 50u);
  EXPECT_EQ(columns.bytes(1), 42);
}

TEST(BuildChunksTest, PutsRealtimeStampsOnTheMonotonicClock) {
  reprise_slot record = AllocRecord(1);
  record.clock_id = REPRISE_CLOCK_REALTIME;
  record.ts_ns = 1'000'000;
  const std::vector records{record};

  const Built built = BuildChunks({.records = records,
                                   .names = &kNoNames,
                                   .realtime_to_monotonic_ns = -999'000});

  EXPECT_EQ(ColumnsOf(built.chunks[0]).start_ns(0), 1000u);
}

TEST(BuildChunksTest, LeavesOutAndCountsWhatCannotBe) {
  std::vector<reprise_slot> records{Record(0), Record(17), Record(0xffff)};
  records.push_back(AllocRecord(1));
  records.back().ts_ns = UINT64_MAX;
  records.push_back(AllocRecord(1));
  records.back().clock_id = 9;
  records.push_back(AllocRecord(1));
  records.back().body.alloc.device = 5000;
  records.push_back(AllocRecord(1, INT64_MIN));
  records.push_back(Record(REPRISE_RECORD_PLAN_STATE));  // state 0
  records.push_back(StepMem(99));  // without its first half
  records.push_back(Verify(0));
  records.back().body.verify.differing = 11;  // more than the 10 checked

  const Built built = Build(records);

  EXPECT_EQ(built.malformed, records.size());
  EXPECT_EQ(built.used, records.size());
  EXPECT_TRUE(built.chunks.empty());
}

TEST(BuildChunksTest, BoundsTheStepsThatWaitForTheirSecondHalf) {
  std::vector<reprise_slot> records;
  for (uint32_t i = 0; i < 10'000; ++i) records.push_back(StepDone(i, i));

  const Built built = Build(records);

  EXPECT_EQ(built.pending.size(), kMaxPending);
}

}  // namespace
}  // namespace reprise::server
