// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "profiler/include/reprise_agent.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kBegin = 1'000'000;

// A recording with two owners: 500 bytes are there before.
//
//   ns        100     200      300     400      500
//   alloc     a 1000  b 2000           c 300
//   free                       a                b
//   alive     1500    3500     2500    2800     800
class RecordedRun : public ::testing::Test {
 protected:
  RecordedRun() : sender_(server_.ingest(), "s1", "run-1") {
    EXPECT_TRUE(sender_.Greet());
    v1::Up up;
    AddName(up, 1, "model.py:3 forward");
    AddName(up, 2, "/me/model.py:3 forward\n/me/train.py:9 main");
    AddName(up, 3, "adam.py:80 step");
    AddName(up, 4, "/x/torch/optim/adam.py:80 step\n/me/train.py:9 main");
    AddName(up, 5, "/me/setup.py:1 load");
    EXPECT_TRUE(sender_.Write(up));
    Add(v1::RECORD_KIND_STEP, 0, 0, 0, 1);
    Add(v1::RECORD_KIND_ALLOC, 0, 500, 0, REPRISE_BASELINE);
    Add(v1::RECORD_KIND_ALLOC, 100, 1000, 0xa000, REPRISE_ALLOC, 1, 2);
    Add(v1::RECORD_KIND_ALLOC, 200, 2000, 0xb000, REPRISE_ALLOC, 1, 2);
    Add(v1::RECORD_KIND_ALLOC, 300, -1000, 0xa000, REPRISE_FREE);
    Add(v1::RECORD_KIND_ALLOC, 400, 300, 0xa000, REPRISE_ALLOC, 3, 4);
    Add(v1::RECORD_KIND_ALLOC, 500, -2000, 0xb000, REPRISE_FREE);
  }

  static void AddName(v1::Up& up, uint32_t id, const std::string& text) {
    v1::NameDef& name = *up.mutable_defs()->add_names();
    name.set_id(id);
    name.set_text(text);
  }
  void Add(v1::RecordKind kind, int64_t at, int64_t bytes, uint64_t address,
           uint64_t extra, uint32_t name = 0, uint32_t stack = 0) {
    columns_.add_kind(kind);
    columns_.add_start_ns(static_cast<uint64_t>(kBegin + at));
    columns_.add_bytes(bytes);
    columns_.add_ptr(address);
    columns_.add_extra(extra);
    columns_.add_name(name);
    columns_.add_stack(stack);
  }
  v1::MemorySegment& Segment(uint64_t address, int64_t bytes) {
    v1::MemorySegment& segment = *columns_.add_segments();
    segment.set_address(address);
    segment.set_bytes(bytes);
    return segment;
  }
  static void AddBlock(v1::MemorySegment& segment, int64_t bytes,
                       v1::BlockState state, int64_t asked = 0,
                       uint32_t stack = 0) {
    segment.add_block_bytes(bytes);
    segment.add_block_state(state);
    segment.add_block_asked(asked);
    segment.add_block_stack(stack);
  }
  void Send() {
    v1::StepReport& report = *columns_.add_steps();
    report.set_step(1);
    report.set_step_ns(600);
    report.set_end_ns(kBegin + 600);
    report.set_window(true);
    const auto count = static_cast<uint32_t>(columns_.kind_size());
    ASSERT_TRUE(sender_.SendChunk(MakeChunk(1, columns_, count)));
    ASSERT_TRUE(sender_.AwaitAck(1));
  }
  v1::LiveMemory Ask(const std::function<void(v1::GetMemoryRequest&)>& change) {
    v1::GetMemoryRequest request;
    request.set_run_id("run-1");
    change(request);
    grpc::ClientContext context;
    v1::LiveMemory memory;
    error_ = server_.query().GetMemory(&context, request, &memory);
    return memory;
  }

  TestServer server_;
  Sender sender_;
  v1::Columns columns_;
  grpc::Status error_;
};

TEST_F(RecordedRun, ShowsWhoIsAliveAtThePeak) {
  Send();

  const v1::LiveMemory memory = Ask([](v1::GetMemoryRequest&) {});

  ASSERT_TRUE(error_.ok()) << error_.error_message();
  EXPECT_EQ(memory.at_ns(), 200);
  EXPECT_EQ(memory.live_bytes(), 3500);
  EXPECT_EQ(memory.unlisted_bytes(), 500);
  ASSERT_EQ(memory.allocations_size(), 2);
  const v1::LiveAllocation& largest = memory.allocations(0);
  EXPECT_EQ(largest.bytes(), 2000);
  EXPECT_EQ(largest.address(), 0xb000u);
  EXPECT_EQ(largest.born_ns(), 200);
  EXPECT_EQ(largest.freed_ns(), 500);
  EXPECT_EQ(largest.owner(), "model.py:3 forward");
  EXPECT_EQ(largest.category(), v1::CATEGORY_ACTIVATION);
  EXPECT_EQ(largest.evidence(), "allocated in the forward of a module");
  EXPECT_THAT(largest.stack(),
              ElementsAre("/me/model.py:3 forward", "/me/train.py:9 main"));
}

TEST_F(RecordedRun, WithoutAStackThePhaseOfTheStepSaysWhatAnAllocationIsFor) {
  const auto add = [&](uint64_t address, v1::Phase phase) {
    Add(v1::RECORD_KIND_ALLOC, 150, 10'000 + static_cast<int64_t>(address),
        address, REPRISE_ALLOC);
    while (columns_.corr_size() < columns_.kind_size()) columns_.add_corr(0);
    columns_.set_corr(columns_.corr_size() - 1, phase);
  };
  add(1, v1::PHASE_UNSPECIFIED);
  add(2, v1::PHASE_OPTIMIZER);
  add(3, v1::PHASE_BACKWARD);
  add(4, v1::PHASE_FORWARD);
  Send();

  const v1::LiveMemory memory = Ask([](v1::GetMemoryRequest&) {});

  ASSERT_GE(memory.allocations_size(), 4);
  const auto says = [&](int i, v1::Category category, const char* evidence) {
    EXPECT_EQ(memory.allocations(i).category(), category) << i;
    EXPECT_THAT(memory.allocations(i).evidence(), HasSubstr(evidence));
  };
  says(0, v1::CATEGORY_ACTIVATION, "during the forward pass (no stack");
  says(1, v1::CATEGORY_GRADIENT, "after the forward pass and before the");
  says(2, v1::CATEGORY_OPTIMIZER_STATE, "optimizer's step (no stack");
  says(3, v1::CATEGORY_UNKNOWN, "neither a stack nor an op");
}

TEST_F(RecordedRun, CountsTheUsesOfAnAddress) {
  Send();

  const v1::LiveMemory memory =
      Ask([](v1::GetMemoryRequest& request) { request.set_at_ns(599); });

  ASSERT_EQ(memory.allocations_size(), 1);
  EXPECT_EQ(memory.allocations(0).address(), 0xa000u);
  EXPECT_EQ(memory.allocations(0).use(), 1u);
  EXPECT_FALSE(memory.allocations(0).has_freed_ns());
  EXPECT_EQ(memory.allocations(0).category(), v1::CATEGORY_OPTIMIZER_STATE);
}

TEST_F(RecordedRun, AnInstantIsAfterWhatHappensAtIt) {
  Send();

  std::vector<int64_t> live;
  for (const int64_t at : {0, 99, 100, 250, 300, 450, 1000}) {
    live.push_back(Ask([at](v1::GetMemoryRequest& request) {
                     request.set_at_ns(at);
                   }).live_bytes());
  }

  EXPECT_THAT(live, ElementsAre(500, 500, 1500, 3500, 2500, 2800, 800));
}

TEST_F(RecordedRun, OfARangeTheHighestInstantIsShown) {
  Send();

  const auto between = [&](int64_t from, int64_t to) {
    return Ask([=](v1::GetMemoryRequest& request) {
      request.set_at_ns(from);
      request.set_until_ns(to);
    });
  };

  EXPECT_EQ(between(150, 450).at_ns(), 200);
  EXPECT_EQ(between(250, 450).live_bytes(), 3500);  // lasts from before
  EXPECT_EQ(between(300, 450).at_ns(), 400);        // and ends at 300
  EXPECT_EQ(between(500, 600).live_bytes(), 800);
}

TEST_F(RecordedRun, SearchLooksAtStacksCategoriesAndAddresses) {
  Send();
  const auto found = [&](const std::string& text) {
    return Ask([&](v1::GetMemoryRequest& request) {
             request.set_at_ns(450);
             request.set_search(text);
           })
        .matched_bytes();
  };

  EXPECT_EQ(found(""), 2300);
  EXPECT_EQ(found("TRAIN.PY:9"), 2300);
  EXPECT_EQ(found("adam"), 300);
  EXPECT_EQ(found("optimizer state"), 300);
  EXPECT_EQ(found("0xB000"), 2000);
  EXPECT_EQ(found("b000_0"), 2000);
  EXPECT_EQ(found("nothing of this"), 0);
}

TEST_F(RecordedRun, SaysWhatItFolded) {
  Send();

  const v1::LiveMemory memory =
      Ask([](v1::GetMemoryRequest& request) { request.set_limit(1); });

  EXPECT_EQ(memory.allocations_size(), 1);
  EXPECT_EQ(memory.folded_count(), 1u);
  EXPECT_EQ(memory.folded_bytes(), 1000);
  int64_t sum = 0;
  for (const v1::LiveGroup& group : memory.categories()) sum += group.bytes();
  EXPECT_EQ(sum, memory.live_bytes());
  sum = 0;
  for (const v1::LiveGroup& group : memory.owners()) sum += group.bytes();
  EXPECT_EQ(sum, memory.live_bytes());
}

TEST_F(RecordedRun, RefusesWhatCannotBeMeant) {
  Send();

  Ask([](v1::GetMemoryRequest& request) { request.set_limit(1001); });
  EXPECT_EQ(error_.error_message(), "limit: must be 0 to 1000, got 1001");
  Ask([](v1::GetMemoryRequest& request) { request.set_at_ns(-1); });
  EXPECT_EQ(error_.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Ask([](v1::GetMemoryRequest& request) { request.set_planned(true); });
  EXPECT_EQ(error_.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(RecordedRun, ABlockThatNoEventSpeaksOfWasThereBefore) {
  v1::MemorySegment& segment = Segment(0xc000, 1024);
  AddBlock(segment, 512, v1::BLOCK_STATE_ALLOCATED, 400, 5);
  AddBlock(segment, 512, v1::BLOCK_STATE_FREE);
  Send();

  const v1::LiveMemory memory =
      Ask([](v1::GetMemoryRequest& request) { request.set_at_ns(0); });

  ASSERT_EQ(memory.allocations_size(), 1);
  EXPECT_EQ(memory.allocations(0).bytes(), 400);
  EXPECT_EQ(memory.allocations(0).owner(), "/me/setup.py:1 load");
  EXPECT_FALSE(memory.allocations(0).has_born_ns());
  EXPECT_EQ(memory.unlisted_bytes(), 100);
}

TEST_F(RecordedRun, MetricsSayWhatIndexedStepsHold) {
  Send();
  const std::string before = server_.Http(
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
      "Connection: close\r\n\r\n");

  Ask([](v1::GetMemoryRequest&) {});

  const std::string after = server_.Http(
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_THAT(before, HasSubstr("\nreprise_indexed_steps_bytes 0\n"));
  EXPECT_THAT(after, Not(HasSubstr("\nreprise_indexed_steps_bytes 0\n")));
}

TEST_F(RecordedRun, SegmentsThatDoNotFitTogetherAreRefused) {
  AddBlock(Segment(0x1000, 512), 1024, v1::BLOCK_STATE_FREE);
  const auto count = static_cast<uint32_t>(columns_.kind_size());

  ASSERT_TRUE(sender_.SendChunk(MakeChunk(1, columns_, count)));

  EXPECT_FALSE(sender_.AwaitAck(1));
  EXPECT_THAT(sender_.Finish().error_message(),
              HasSubstr("does not fit into the segment"));
}

TEST_F(RecordedRun, IsComparedByWhatItHeldAtItsPeak) {
  Send();
  v1::CompareRequest request;
  request.set_a("run-1");
  request.set_b("run-1");
  grpc::ClientContext context;
  v1::Comparison same;

  const grpc::Status status = server_.query().Compare(&context, request, &same);

  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(same.equal());
  EXPECT_EQ(same.a().peak_bytes(), 3500);
  EXPECT_EQ(same.a().peak_of(), "measured");
  ASSERT_EQ(same.sources_size(), 2);
  EXPECT_EQ(same.sources(0).name(), "model.py:3 forward");
  EXPECT_EQ(same.sources(0).a_bytes(), 3000);
  EXPECT_EQ(same.sources(0).b_count(), 2u);
}

// ---- One name for each byte ----

// A step that finds 500 bytes: 100 of parameters, 200 of Adam's state, 120 of
// gradients that it frees, and 80 that nobody knows.
v1::StepGraph NamedGraph() {
  v1::StepGraph graph;
  graph.set_name("named");
  graph.set_static_bytes(380);
  const auto part = [&](v1::Category category, int64_t bytes) {
    v1::StaticPart& made = *graph.add_static_parts();
    made.set_category(category);
    made.set_bytes(bytes);
  };
  part(v1::CATEGORY_PARAMETER, 100);
  part(v1::CATEGORY_OPTIMIZER_STATE, 200);
  const auto storage = [&](int64_t bytes, v1::Category category) {
    v1::Storage& made = *graph.add_storages();
    made.set_id(static_cast<uint32_t>(graph.storages_size() - 1));
    made.set_bytes(bytes);
    made.set_category(category);
  };
  storage(120, v1::CATEGORY_GRADIENT);
  storage(1000, v1::CATEGORY_ACTIVATION);
  storage(120, v1::CATEGORY_GRADIENT);
  const auto op = [&](const char* name, v1::Phase phase,
                      const std::vector<uint32_t>& reads, uint32_t writes) {
    v1::Op& made = *graph.add_ops();
    made.set_id(static_cast<uint32_t>(graph.ops_size() - 1));
    made.set_name(name);
    made.set_phase(phase);
    made.set_kind(v1::OP_KIND_ONCE);
    made.set_time_ns(100);
    made.mutable_reads()->Assign(reads.begin(), reads.end());
    made.add_writes(writes);
  };
  op("reprise.step_begin", v1::PHASE_FORWARD, {}, 0);
  op("aten.mm", v1::PHASE_FORWARD, {0}, 1);
  op("aten.mm_backward", v1::PHASE_BACKWARD, {1}, 2);
  graph.add_required(2);
  return graph;
}

using Totals = std::map<v1::Category, int64_t>;

// The same step, recorded: the old gradients go, one activation and the new
// gradients come.
class NamedRun : public RecordedRun {
 protected:
  NamedRun() {
    columns_.Clear();
    const auto add = [&](int64_t at, int64_t bytes, uint64_t address,
                         uint64_t extra, v1::Phase phase) {
      Add(v1::RECORD_KIND_ALLOC, at, bytes, address, extra);
      columns_.add_corr(phase);
    };
    Add(v1::RECORD_KIND_STEP, 0, 0, 0, 1);
    columns_.add_corr(0);
    add(0, 500, 0, REPRISE_BASELINE, v1::PHASE_UNSPECIFIED);
    add(100, 1000, 0xa000, REPRISE_ALLOC, v1::PHASE_FORWARD);
    add(200, -120, 0xc000, REPRISE_FREE, v1::PHASE_UNSPECIFIED);
    add(250, 120, 0xb000, REPRISE_ALLOC, v1::PHASE_BACKWARD);
    add(300, -1000, 0xa000, REPRISE_FREE, v1::PHASE_UNSPECIFIED);
  }

  Totals OnTheMemoryPage(int64_t at_ns) {
    Totals totals;
    const v1::LiveMemory memory =
        Ask([&](v1::GetMemoryRequest& request) { request.set_at_ns(at_ns); });
    for (const v1::LiveGroup& group : memory.categories()) {
      totals[group.category()] += group.bytes();
    }
    Totals owners;
    for (const v1::LiveGroup& group : memory.owners()) {
      owners[group.category()] += group.bytes();
    }
    EXPECT_EQ(owners, totals);
    return totals;
  }
  // The largest of the run's page.
  Totals OnTheRunPage() {
    v1::TimelineRequest request;
    request.set_run_id("run-1");
    grpc::ClientContext context;
    v1::Timeline timeline;
    EXPECT_TRUE(server_.query().GetTimeline(&context, request, &timeline).ok());
    Totals totals;
    for (const v1::CategoryBand& band : timeline.predicted_base().bands()) {
      for (const int64_t bytes : band.max_bytes()) {
        int64_t& most = totals[band.category()];
        most = std::max(most, bytes);
      }
    }
    return totals;
  }
  Totals Compared() {
    v1::CompareRequest request;
    request.set_a("run-1");
    request.set_b("run-1");
    grpc::ClientContext context;
    v1::Comparison same;
    EXPECT_TRUE(server_.query().Compare(&context, request, &same).ok());
    Totals totals;
    for (const v1::ComparedPart& part : same.categories()) {
      totals[part.category()] += part.a_bytes();
    }
    return totals;
  }
};

TEST_F(NamedRun, EveryPageGivesAByteTheSameName) {
  const Totals at_the_peak = {{v1::CATEGORY_PARAMETER, 100},
                              {v1::CATEGORY_OPTIMIZER_STATE, 200},
                              {v1::CATEGORY_GRADIENT, 120},
                              {v1::CATEGORY_ACTIVATION, 1000},
                              {v1::CATEGORY_UNKNOWN, 80}};
  server_.PutGraph(NamedGraph(), "run-1");
  Send();

  EXPECT_EQ(OnTheRunPage(), at_the_peak);
  EXPECT_EQ(Compared(), at_the_peak);
  EXPECT_EQ(OnTheMemoryPage(150), at_the_peak);  // the old gradients
  EXPECT_EQ(OnTheMemoryPage(260), at_the_peak);  // the new ones
}

TEST_F(NamedRun, WhatTheSourceDoesNotTellApartIsNeverCalledParametersAlone) {
  v1::StepGraph graph = NamedGraph();
  graph.clear_static_parts();
  const Totals at_the_peak = {{v1::CATEGORY_STATIC, 380},
                              {v1::CATEGORY_GRADIENT, 120},
                              {v1::CATEGORY_ACTIVATION, 1000}};
  server_.PutGraph(graph, "run-1");
  Send();

  EXPECT_EQ(OnTheRunPage(), at_the_peak);
  EXPECT_EQ(Compared(), at_the_peak);
  EXPECT_EQ(OnTheMemoryPage(150), at_the_peak);
}

}  // namespace
}  // namespace reprise::server
