// SPDX-License-Identifier: Apache-2.0
#include "formats/import/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "formats/import/run_writer.h"
#include "profiler/include/reprise_wire.h"
#include "tests/formats/snapshot_file.h"

namespace reprise::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StatusOr<Snapshot> Open(const std::string& bytes,
                        std::optional<int> device = std::nullopt) {
  return Snapshot::Open(
      [&]() -> StatusOr<ByteSource> { return ByteSource::Over(bytes); }, "x",
      device);
}

// Returns a pickle in which all events share one stack with one long text.
std::string SharedText(size_t bytes, int events) {
  std::string size;
  for (int i = 0; i < 4; ++i) size += static_cast<char>(bytes >> (8 * i));
  std::string first = Event("alloc", 1, 10, 1);
  first.pop_back();
  first += Text("frames") + "](}(" + Text("filename") + Text("a.py") +
           Text("name") + "X" + size + std::string(bytes, 'n') + "ueq" +
           std::string(1, '\1') + "u";
  std::vector<std::string> all = {first};
  for (int i = 2; i <= events; ++i) {
    std::string event = Event("alloc", i, 10, i);
    event.pop_back();
    all.push_back(event + Text("frames") + "h" + std::string(1, '\1') + "u");
  }
  return Pickle(0, all);
}

TEST(SnapshotTest, ATextOfMegabytesThatAllEventsShareIsLookedAtInItsBeginning) {
  const std::string bytes = SharedText(1 << 20, 5000);
  const auto snapshot = Open(bytes);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
  RecordingNames names;
  size_t events = 0;

  const Status replayed =
      snapshot->Replay(names, [&](const MemoryEvent&) -> Status {
        ++events;
        return OkStatus();
      });

  ASSERT_TRUE(replayed.ok()) << replayed.message();
  EXPECT_EQ(events, 5000u);
  // The owner, and the stack of one frame, are the same text.
  ASSERT_EQ(names.texts().size(), 1u);
  EXPECT_LT(names.texts()[0].size(), 600u);
  EXPECT_THAT(names.texts()[0], testing::StartsWith("a.py nnn"));
}

TEST(SnapshotTest, WhatWasThereBeforeIsTheEndMinusTheEvents) {
  // +100 +50 -100 with 130 at the end: 80 existed before, and the peak is 230.
  const std::string bytes =
      Pickle(130, {Event("alloc", 1, 100, 10), Event("alloc", 2, 50, 20),
                   Event("free_requested", 1, 100, 25),
                   Event("free_completed", 1, 100, 30)});
  const auto snapshot = Open(bytes);

  ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
  EXPECT_EQ(snapshot->summary().baseline_bytes, 80);
  EXPECT_EQ(snapshot->summary().peak_bytes, 230);
  EXPECT_EQ(snapshot->summary().peak_at_ns, 10'000);
  EXPECT_EQ(snapshot->summary().duration_ns, 20'000);
  EXPECT_EQ(snapshot->summary().events, 3U);
  EXPECT_EQ(snapshot->summary().reserved_bytes, 230);
}

TEST(SnapshotTest, WithoutSegmentsTheLeastThatIsPossibleWasThere) {
  const std::string bytes =
      Pickle(0, {Event("free_completed", 9, 70, 1), Event("alloc", 1, 30, 2)});
  const auto snapshot = Open(bytes);

  ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
  EXPECT_EQ(snapshot->summary().baseline_bytes, 70);
  EXPECT_EQ(snapshot->summary().peak_bytes, 70);
  EXPECT_THAT(snapshot->summary().notes,
              testing::Contains(HasSubstr("it has no segments")));
}

TEST(SnapshotTest, SaysThatItHasNoStepGraph) {
  const auto snapshot = Open(Pickle(10, {Event("alloc", 1, 10, 1)}));

  ASSERT_TRUE(snapshot.ok());
  EXPECT_THAT(snapshot->summary().notes,
              testing::Contains(HasSubstr("which op reads which tensor")));
}

TEST(SnapshotTest, WithoutAHistoryWhatIsAliveIsShown) {
  const std::string bytes = Pickle(130, {});
  const auto snapshot = Open(bytes);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
  EXPECT_EQ(snapshot->summary().baseline_bytes, 0);
  EXPECT_EQ(snapshot->summary().peak_bytes, 130);
  EXPECT_EQ(snapshot->summary().events, 1u);
  EXPECT_THAT(snapshot->summary().notes,
              testing::Contains(HasSubstr("it has no history")));
  RecordingNames names;
  std::vector<int64_t> events;
  size_t segments = 0;

  const Status replayed = snapshot->Replay(
      names,
      [&](const MemoryEvent& event) -> Status {
        events.push_back(event.bytes);
        return OkStatus();
      },
      [&](const RecordedSegment&) -> Status {
        ++segments;
        return OkStatus();
      });

  ASSERT_TRUE(replayed.ok()) << replayed.message();
  EXPECT_EQ(events, std::vector<int64_t>{130});
  EXPECT_EQ(segments, 1u);
}

TEST(SnapshotTest, NamesWhatIsMissing) {
  EXPECT_THAT(Open(Pickle(0, {})).status().message(),
              HasSubstr("has no allocation events and nothing alive; call "
                        "torch.cuda.memory._record_memory_history()"));
  EXPECT_THAT(
      Open(Pickle(10, {Event("alloc", 1, 10, 1)}), 3).status().message(),
      HasSubstr("of device 3"));
  EXPECT_THAT(Open(std::string("\x80\x02}.", 4)).status().message(),
              HasSubstr("no memory snapshot"));
  EXPECT_THAT(
      Open(Pickle(10, {"}(" + Text("addr") + Int(1) + "u"})).status().message(),
      HasSubstr("a trace entry without its action"));
}

// Collects the messages of a run, as the server would receive them.
struct Sent {
  std::vector<v1::Up> messages;
  RunWriter Writer(const MemorySummary& summary, const RecordingNames& names,
                   uint64_t most_events = RunWriter::kMostEvents) {
    return RunWriter(
        {.run_id = "run", .session_id = "session", .host = "h"}, summary, names,
        [this](const v1::Up& up) {
          messages.push_back(up);
          return OkStatus();
        },
        most_events);
  }
  v1::Columns Records() const {
    v1::Columns all;
    for (const v1::Up& up : messages) {
      v1::Columns some;
      if (up.has_chunk() && some.ParseFromString(up.chunk().body())) {
        all.MergeFrom(some);
      }
    }
    return all;
  }
};

TEST(RunWriterTest, WritesAStepThatBeginsWithItsBaseline) {
  const MemorySummary summary{.name = "s",
                              .events = 2,
                              .duration_ns = 50,
                              .baseline_bytes = 7,
                              .peak_bytes = 17};
  RecordingNames names;
  const uint32_t name = names.Intern("model.py:3");
  Sent sent;
  RunWriter writer = sent.Writer(summary, names);
  ASSERT_TRUE(writer.Begin().ok());
  ASSERT_TRUE(
      writer.Add({.time_ns = 0, .address = 1, .bytes = 10, .name = name}).ok());
  ASSERT_TRUE(writer.Add({.time_ns = 50, .address = 1, .bytes = -10}).ok());
  ASSERT_TRUE(writer.End(50).ok());

  const v1::Columns records = sent.Records();
  EXPECT_THAT(records.bytes(), ElementsAre(7, 0, 10, -10));
  EXPECT_THAT(records.extra(),
              ElementsAre(REPRISE_BASELINE, 1, REPRISE_ALLOC, REPRISE_FREE));
  ASSERT_EQ(records.steps_size(), 1);
  EXPECT_EQ(records.steps(0).peak_bytes(), 17);
  EXPECT_TRUE(records.steps(0).window());
  // The baseline is before the step; events are as far into it as the file says.
  EXPECT_LT(records.start_ns(0), records.start_ns(1));
  EXPECT_EQ(records.start_ns(2), records.start_ns(1));
  EXPECT_EQ(records.start_ns(3) - records.start_ns(1), 50U);
  EXPECT_EQ(records.steps(0).step_ns(), 50);
  EXPECT_TRUE(sent.messages.front().has_hello());
  EXPECT_TRUE(sent.messages.back().has_bye());
}

TEST(RunWriterTest, FoldingKeepsEveryGroupsExtremes) {
  // 600,000 events: a sawtooth of +3 -2 with a single spike of 1000.
  constexpr uint64_t kEvents = 600'000;
  MemorySummary summary{.name = "s", .events = kEvents, .duration_ns = kEvents};
  RecordingNames names;
  Sent sent;
  RunWriter writer = sent.Writer(summary, names, 200'000);
  ASSERT_TRUE(writer.Begin().ok());
  int64_t sum = 0;
  int64_t peak = 0;
  for (uint64_t i = 0; i < kEvents; ++i) {
    int64_t bytes = i % 2 == 0 ? 3 : -2;
    if (i == 300'001) bytes = 1000;
    if (i == 300'002) bytes = -1000;
    sum += bytes;
    peak = std::max(peak, sum);
    ASSERT_TRUE(
        writer.Add({.time_ns = static_cast<int64_t>(i), .bytes = bytes}).ok());
  }
  ASSERT_TRUE(writer.End(kEvents).ok());

  int64_t live = 0;
  int64_t highest = 0;
  const v1::Columns records = sent.Records();
  for (const int64_t bytes : records.bytes()) {
    live += bytes;
    highest = std::max(highest, live);
  }
  EXPECT_EQ(live, sum);
  EXPECT_EQ(highest, peak);
  EXPECT_LE(records.kind_size(), 200'100);
}

TEST(RunWriterTest, SaysWhenARecordingHasMoreThanItWrites) {
  EXPECT_FALSE(RunWriter::Folds({.events = 10'000'000}));
  EXPECT_TRUE(RunWriter::Folds({.events = 10'000'001}));
}

TEST(RunWriterTest, CutsASegmentOfManyBlocksIntoPartsThatFitAChunk) {
  RecordedSegment segment{.address = 4096, .bytes = 40'000 * 512};
  segment.blocks.resize(40'000, {.bytes = 512});
  segment.blocks.back().state = v1::BLOCK_STATE_ALLOCATED;
  RecordingNames names;
  Sent sent;
  RunWriter writer = sent.Writer({.name = "s", .events = 1}, names);
  ASSERT_TRUE(writer.Begin().ok());

  ASSERT_TRUE(writer.Add(segment).ok());
  ASSERT_TRUE(writer.End(1).ok());

  const v1::Columns records = sent.Records();
  ASSERT_EQ(records.segments_size(), 3);  // 16,384 + 16,384 + 7,232
  EXPECT_EQ(records.segments(2).block_bytes_size(), 7232);
  EXPECT_EQ(records.segments(2).block_state(7231), v1::BLOCK_STATE_ALLOCATED);
  for (const v1::MemorySegment& part : records.segments()) {
    EXPECT_EQ(part.address(), 4096u);
    EXPECT_EQ(part.bytes(), 40'000 * 512);
  }
}

TEST(SnapshotTest, PassesOnSegmentsWhoseBlocksCoverThem) {
  const std::string bytes = Pickle(130, {Event("alloc", 1, 100, 10)});
  const auto snapshot = Open(bytes);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
  RecordingNames names;
  std::vector<RecordedSegment> segments;

  const Status replayed = snapshot->Replay(
      names, [](const MemoryEvent&) { return OkStatus(); },
      [&](const RecordedSegment& segment) {
        segments.push_back(segment);
        return OkStatus();
      });

  ASSERT_TRUE(replayed.ok()) << replayed.message();
  ASSERT_EQ(segments.size(), 1u);
  int64_t sum = 0, held = 0;
  for (const RecordedBlock& block : segments[0].blocks) {
    sum += block.bytes;
    if (block.state != v1::BLOCK_STATE_FREE) held += block.bytes;
  }
  EXPECT_EQ(sum, segments[0].bytes);
  EXPECT_EQ(held, 130);
}

}  // namespace
}  // namespace reprise::formats
