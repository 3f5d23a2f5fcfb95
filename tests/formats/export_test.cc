// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "formats/export/timeline.h"
#include "formats/import/trace.h"
#include "profiler/include/reprise_wire.h"

namespace reprise::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// a makes x (100), b makes y (200) with 50 of workspace, c reads x and y.
planner::StepGraph Graph() {
  planner::StepGraph graph;
  graph.static_bytes = 1000;
  graph.storages = {{.bytes = 100, .name = "x"}, {.bytes = 200}};
  graph.ops = {
      {.time_ns = 10'000, .writes = {0}, .name = "a", .module = "net.0"},
      {.time_ns = 20'000, .workspace_bytes = 50, .writes = {1}, .name = "b"},
      {.time_ns = 5'000, .reads = {0, 1}, .name = "c"}};
  return graph;
}

// Drops x after a and recomputes it before c.
planner::Schedule Again() {
  using planner::Exec;
  using planner::Free;
  return {Exec(0), Free(0), Exec(1), Exec(0), Exec(2), Free(0), Free(1)};
}

std::vector<int64_t> Counter(const nlohmann::json& trace, int process) {
  std::vector<int64_t> values;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "C" && event["pid"] == process) {
      values.push_back(event["args"]["bytes"].get<int64_t>());
    }
  }
  return values;
}

TEST(HtmlReportTest, EveryByteOfThePeakIsInItsTable) {
  const auto timeline = PredictedTimeline("predicted", Graph(), Again(), {}, 7);
  ASSERT_TRUE(timeline.ok()) << timeline.status().message();

  const std::string html = WriteHtmlReport(
      {.name = "n", .sentence = "It fits.", .budget_bytes = 2048}, {*timeline});

  // The peak of 1307 is x 100, y 200, 1000 of static memory and 7 of reserve.
  EXPECT_THAT(html, HasSubstr("Alive at the peak, 1.3 KiB after 30 us"));
  EXPECT_THAT(html, HasSubstr("<td class=\"right\">100 B</td>"
                              "<td>unknown</td><td>x</td>"));
  EXPECT_THAT(html, HasSubstr("<td class=\"right\">200 B</td>"));
  EXPECT_THAT(html, HasSubstr("<td class=\"right\">1000 B</td>"
                              "<td>parameters, buffers and optimizer state</td>"
                              "<td>static memory, there throughout</td>"));
  EXPECT_THAT(html, HasSubstr("<td class=\"right\">7 B</td><td>unknown</td>"));
  EXPECT_THAT(html, Not(HasSubstr("workspace")));
  EXPECT_THAT(html, HasSubstr("the budget of 2.0 KiB"));
}

TEST(HtmlReportTest, NamesAreTextAndNothingIsLoaded) {
  ExportTimeline timeline;
  timeline.title = "<b>";
  timeline.duration_ns = 10;
  timeline.names = {"", "<script>alert(1)</script>"};
  timeline.events = {{.time_ns = 0, .address = 1, .bytes = 64, .what = 1}};
  timeline.curve = {{0, 64}};

  const std::string html = WriteHtmlReport({.name = "a&\"b"}, {timeline});

  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("http://")));
  EXPECT_THAT(html, Not(HasSubstr("https://")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)"));
  EXPECT_THAT(html, HasSubstr("a&amp;&quot;b"));
}

TEST(HtmlReportTest, ASpikeOfOneEventInAMillionIsDrawnAndTheFileStaysSmall) {
  ExportTimeline timeline;
  timeline.duration_ns = 1'000'000;
  timeline.names = {""};
  for (int64_t i = 0; i < 1'000'000; ++i) {
    timeline.curve.push_back({i, i == 700'123 ? 5000 : 1000});
  }

  const std::string html = WriteHtmlReport({.name = "n"}, {timeline});

  // In column 700 of 1,000; its height is that of the peak.
  EXPECT_THAT(html, HasSubstr("L700 8.5H701"));
  EXPECT_LT(html.size(), 40'000u);
}

TEST(ExportTest, TheChromeCounterIsTheEvaluatorsCurve) {
  const auto timeline = PredictedTimeline("predicted", Graph(), Again(), {}, 7);
  ASSERT_TRUE(timeline.ok()) << timeline.status().message();
  std::vector<planner::MemoryPoint> points;
  ASSERT_TRUE(planner::Evaluate(Graph(), Again(), {}, &points).ok());

  const auto trace = nlohmann::json::parse(WriteChromeTrace("n", {*timeline}));

  std::vector<int64_t> expected;
  for (const auto& point : points) expected.push_back(point.bytes + 7);
  EXPECT_EQ(Counter(trace, 1), expected);
  EXPECT_THAT(expected, ElementsAre(1107, 1257, 1307, 1307));
}

std::vector<std::string> Slices(const nlohmann::json& trace) {
  std::vector<std::string> slices;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    slices.push_back(event["name"].get<std::string>() + " " +
                     event["cat"].get<std::string>());
    EXPECT_GE(event["dur"].get<double>(), 0);
  }
  return slices;
}

TEST(ExportTest, SlicesSayWhatRunsAgain) {
  const auto timeline = PredictedTimeline("p", Graph(), Again(), {}, 0);
  const auto trace = nlohmann::json::parse(WriteChromeTrace("n", {*timeline}));

  EXPECT_THAT(Slices(trace),
              ElementsAre("ProfilerStep#1 user_annotation", "a cpu_op",
                          "b cpu_op", "a cpu_op,recompute", "c cpu_op"));
}

TEST(ExportTest, AChromeTraceOfAPlanComesBackAsTheSameStep) {
  auto graph = Graph();
  graph.ops[2].phase = planner::Phase::kBackward;
  const auto plan = PredictedTimeline("p", graph, Again(), {}, 7);
  const auto base = PredictedTimeline(
      "b", graph, planner::BaseSchedule(graph, planner::FreePolicy::kEager), {},
      0);
  ASSERT_TRUE(plan.ok() && base.ok());
  const std::string text = WriteChromeTrace("n", {*plan, *base});

  for (const int device : {0, 1}) {
    const ExportTimeline& timeline = device == 0 ? *plan : *base;
    const auto back = Trace::Open(
        [&]() -> StatusOr<ByteSource> { return ByteSource::Over(text); }, "x",
        std::nullopt, device);

    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->summary().peak_bytes, timeline.PeakBytes());
    EXPECT_EQ(back->summary().baseline_bytes, timeline.static_bytes);
    EXPECT_EQ(back->summary().duration_ns, timeline.duration_ns);
    EXPECT_EQ(back->summary().events, timeline.events.size());
    ASSERT_EQ(back->step().ops.size(), timeline.ops.size());
    for (size_t i = 0; i < timeline.ops.size(); ++i) {
      const TraceOp& op = back->step().ops[i];
      EXPECT_EQ(op.name, timeline.ops[i].name);
      EXPECT_EQ(op.start_ns, timeline.ops[i].start_ns);
      EXPECT_EQ(op.end_ns - op.start_ns, timeline.ops[i].duration_ns);
      EXPECT_EQ(op.backward, timeline.ops[i].phase == "backward");
    }
  }
}

TEST(ExportTest, AddressesOfWhatLivesTogetherNeverOverlap) {
  const auto timeline = PredictedTimeline("p", Graph(), Again(), {}, 0);

  std::map<uint64_t, int64_t> alive;
  for (const ExportEvent& event : timeline->events) {
    if (event.bytes < 0) {
      alive.erase(event.address);
      continue;
    }
    const auto after = alive.lower_bound(event.address);
    if (after != alive.end()) {
      EXPECT_LE(event.address + static_cast<uint64_t>(event.bytes),
                after->first);
    }
    if (after != alive.begin()) {
      const auto before = std::prev(after);
      EXPECT_LE(before->first + static_cast<uint64_t>(before->second),
                event.address);
    }
    alive[event.address] = event.bytes;
  }
}

TEST(ExportTest, AMeasuredStepBecomesSlicesAndASum) {
  MeasuredTimeline measured("measured");
  v1::StepPart head;
  head.set_begin_ns(1000);
  head.set_end_ns(9000);
  head.set_baseline_bytes(40);
  measured.Add(head);
  v1::StepPart part;
  part.add_names()->set_id(5);
  part.mutable_names(0)->set_text("aten::mm");
  v1::Columns& records = *part.mutable_records();
  const auto add = [&](uint64_t at, v1::RecordKind kind, int64_t bytes,
                       uint32_t name, uint64_t extra) {
    records.add_start_ns(at);
    records.add_dur_ns(0);
    records.add_kind(kind);
    records.add_op(77);
    records.add_name(name);
    records.add_stream(0);
    records.add_bytes(bytes);
    records.add_ptr(256);
    records.add_thread(3);
    records.add_extra(extra);
  };
  add(2000, v1::RECORD_KIND_OP_BEGIN, 0, 5, 0);
  add(2500, v1::RECORD_KIND_ALLOC, 60, 0, REPRISE_ALLOC);
  add(3000, v1::RECORD_KIND_OP_END, 0, 0, 0);
  add(4000, v1::RECORD_KIND_ALLOC, -60, 0, REPRISE_FREE);
  measured.Add(part);

  const ExportTimeline timeline = measured.Finish();

  ASSERT_EQ(timeline.ops.size(), 1U);
  EXPECT_EQ(timeline.ops[0].name, "aten::mm");
  EXPECT_EQ(timeline.ops[0].duration_ns, 1000);
  EXPECT_EQ(timeline.PeakBytes(), 100);
  EXPECT_EQ(timeline.names[timeline.events[0].what], "aten::mm");
}

}  // namespace
}  // namespace reprise::formats
