// SPDX-License-Identifier: Apache-2.0
#include "formats/import/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/str_cat.h"
#include "formats/convert/graph_proto.h"
#include "planner/model/evaluate.h"

namespace reprise::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Op(const std::string& name, int64_t ts, int dur,
               const std::string& args = "") {
  return StrCat(R"({"ph":"X","cat":"cpu_op","name":")", name,
                R"(","pid":1,"tid":1,"ts":)", ts, R"(,"dur":)", dur,
                R"(,"args":{)", args, "}},\n");
}
std::string Inputs(const std::string& dims) {
  return R"("Input type":["float"],"Input Dims":[)" + dims + "]";
}
std::string Memory(int64_t ts, int bytes, int address, int total) {
  return StrCat(R"({"ph":"i","cat":"cpu_instant_event","name":"[memory]",)",
                R"("pid":1,"tid":1,"ts":)", ts, R"(,"args":{"Bytes":)", bytes,
                R"(,"Addr":)", address,
                R"(,"Device Id":-1,"Device Type":0,"Total Allocated":)", total,
                "}},\n");
}
std::string Step(int number, int ts, int dur) {
  return StrCat(R"({"ph":"X","cat":"user_annotation","name":"ProfilerStep#)",
                number, R"(","pid":1,"tid":1,"ts":)", ts, R"(,"dur":)", dur,
                R"(,"args":{}},)", "\n");
}
std::string File(const std::string& events) {
  return R"({"schemaVersion":1,"traceEvents":[)" + events +
         R"({"ph":"M","name":"end"}]})";
}

StatusOr<Trace> Open(const std::string& text,
                     std::optional<int64_t> step = std::nullopt) {
  return Trace::Open(
      [&]() -> StatusOr<ByteSource> { return ByteSource::Over(text); }, "t",
      step, std::nullopt);
}

// 100 bytes exist at the start. f makes x (400) from them; g reads x and makes
// y (800), using 60 bytes meanwhile; the backward of g reads x and makes 800
// bytes, then x and y are freed.
std::string Training() {
  return File(Step(7, 0, 1000) +
              Op("aten::linear", 10, 100, R"("Sequence number":1)") +
              Op("aten::addmm", 20, 50, R"("Sequence number":2)") +
              Memory(30, 400, 1, 500) +
              Op("aten::gelu", 200, 100,
                 R"("Sequence number":3,)" + Inputs("[10,10]")) +
              Memory(210, 60, 2, 560) + Memory(220, 800, 3, 1360) +
              Memory(230, -60, 2, 1300) +
              Op("autograd::engine::evaluate_function: GeluBackward0", 400, 200,
                 R"("Sequence number":3,"Fwd thread id":1)") +
              Op("GeluBackward0", 410, 150) +
              Op("aten::gelu_backward", 420, 100,
                 Inputs("[10,10]") + R"(,"Sequence number":99)") +
              Memory(430, 800, 4, 2100) + Memory(580, -400, 1, 1700) +
              Memory(700, -800, 3, 900));
}

TEST(TraceTest, AnOpIsTheOutermostCall) {
  const auto trace = Open(Training());

  ASSERT_TRUE(trace.ok()) << trace.status().message();
  std::vector<std::string> names;
  for (const TraceOp& op : trace->step().ops) names.push_back(op.name);
  EXPECT_THAT(names,
              ElementsAre("aten::linear", "aten::gelu", "aten::gelu_backward"));
  EXPECT_TRUE(trace->step().ops[2].backward);
  EXPECT_EQ(trace->step().ops[2].node_sequence, 3);
  EXPECT_EQ(trace->summary().baseline_bytes, 100);
  EXPECT_EQ(trace->summary().peak_bytes, 2100);
}

std::string Frame(const std::string& name, int64_t ts, int dur,
                  int thread = 1) {
  return StrCat(R"({"ph":"X","cat":"python_function","name":")", name,
                R"(","pid":1,"tid":)", thread, R"(,"ts":)", ts, R"(,"dur":)",
                dur, R"(,"args":{"Python id":1}},)", "\n");
}

// Two layers of a net, and an op beside them. The step has begun in a frame of
// before.
std::string WithStacks() {
  return File(Step(1, 100, 900) + Frame("/home/me/train.py(9): main", 10, 990) +
              Frame("nn.Module: Net_0", 110, 400) +
              Frame("/home/me/net.py(30): forward", 111, 398) +
              Frame("nn.Module: Block_0", 120, 100) +
              Frame("torch/nn/functional.py(12): gelu", 121, 90) +
              Frame("<built-in function gelu>", 122, 80) +
              Op("aten::gelu", 130, 40) +
              Frame("/home/me/inside.py(1): own_kernel", 135, 10) +
              Memory(140, 100, 1, 100) + Frame("nn.Module: Block_1", 300, 100) +
              Op("aten::relu", 310, 40) + Memory(320, 200, 2, 300) +
              Op("aten::add", 450, 10) + Memory(455, 400, 3, 700) +
              Frame("/home/me/other.py(5): loader", 500, 400, 2) +
              Op("aten::sum", 600, 40) + Memory(610, 800, 4, 1500));
}

TEST(TraceTest, AnOpHasTheFramesInWhichItWasCalledAndTheirModules) {
  const auto trace = Open(WithStacks());
  ASSERT_TRUE(trace.ok()) << trace.status().message();

  std::vector<TraceStack> of;
  for (const TraceOp& op : trace->step().ops) {
    of.push_back(trace->step().stacks[op.stack]);
  }

  ASSERT_EQ(of.size(), 4U);
  EXPECT_EQ(of[0].lines,
            "/torch/nn/functional.py:12 gelu\nnn.Module: Block_0\n"
            "/home/me/net.py:30 forward\nnn.Module: Net_0\n"
            "/home/me/train.py:9 main");
  EXPECT_EQ(of[0].owner, "net.py:30 forward");
  EXPECT_EQ(of[0].module, "Block_0");
  EXPECT_EQ(of[1].module, "Block_1");
  EXPECT_EQ(of[2].module, "");
  EXPECT_EQ(of[2].owner, "net.py:30 forward");
  EXPECT_EQ(of[3].lines, "/home/me/train.py:9 main");
  const auto graph = GraphOfTrace(*trace);
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(graph->graph.ops(1).module(), "Block_0");
}

TEST(TraceTest, AnAllocationIsOwnedByWhoCalledItsOp) {
  const auto with = Open(WithStacks()), without = Open(Training());
  ASSERT_TRUE(with.ok() && without.ok());
  RecordingNames names;
  std::vector<std::string> owners;
  std::vector<bool> stacks;
  const auto note = [&](const MemoryEvent& event) {
    if (event.bytes > 0) {
      owners.push_back(names.texts()[event.name - 1]);
      stacks.push_back(event.stack != 0);
    }
    return OkStatus();
  };

  ASSERT_TRUE(with->Replay(names, note).ok());
  EXPECT_THAT(owners, ElementsAre("net.py:30 forward", "net.py:30 forward",
                                  "net.py:30 forward", "train.py:9 main"));
  EXPECT_THAT(stacks, ElementsAre(true, true, true, true));
  owners.clear();
  stacks.clear();
  ASSERT_TRUE(without->Replay(names, note).ok());
  EXPECT_EQ(owners.front(), "aten::linear");
  EXPECT_THAT(stacks, testing::Each(false));
}

TEST(TraceTest, AStackOfThousandsOfFramesIsCut) {
  std::string deep;
  for (int i = 0; i < 3000; ++i) {
    deep +=
        Frame(StrCat(std::string(200, 'a'), i, ".py(1): f"), i, 9000 - 2 * i);
  }
  const auto trace = Open(File(Step(1, 0, 10'000) + deep +
                               Op("a::a", 3500, 20) + Memory(3510, 5, 1, 5)));
  ASSERT_TRUE(trace.ok()) << trace.status().message();

  const TraceStack& stack = trace->step().stacks[trace->step().ops[0].stack];
  EXPECT_LE(stack.lines.size(), 4096U);
  EXPECT_FALSE(stack.lines.empty());
}

TEST(TraceTest, AFrameThatIsNoLineOfAFileIsLeftOut) {
  for (const char* name : {"", "(", "(): ", "a(", "a(1)", "<frozen x>(1): f",
                           "): (", "nn.Module:"}) {
    const auto trace = Open(File(Step(1, 0, 100) + Frame(name, 5, 90) +
                                 Op("a::a", 10, 20) + Memory(15, 5, 1, 5)));
    ASSERT_TRUE(trace.ok()) << name;
    EXPECT_EQ(trace->step().ops[0].stack, 0U) << name;
  }
}

TEST(TraceTest, OpsStandAroundTheMemoryEventsThatHappenInThem) {
  const auto trace =
      Open(File(Step(1, 0, 100) + Op("a::a", 10, 20) + Op("a::none", 30, 0) +
                Op("a::b", 30, 20) + Memory(10, 5, 1, 5) +
                Memory(30, 7, 2, 12) + Memory(60, -5, 1, 7)));
  ASSERT_TRUE(trace.ok()) << trace.status().message();

  RecordingNames names;
  std::vector<std::string> order;
  const Status replayed = trace->Replay(
      names,
      [&](const MemoryEvent& event) {
        order.push_back(std::to_string(event.bytes));
        return OkStatus();
      },
      [&](const OpMark& mark) {
        order.push_back(
            StrCat(mark.begins ? "" : "/", names.texts()[mark.name - 1]));
        return OkStatus();
      });

  ASSERT_TRUE(replayed.ok());
  EXPECT_EQ(trace->summary().ops, 2U);  // the third, of length 0, is inside b
  EXPECT_THAT(order,
              ElementsAre("a::a", "5", "/a::a", "a::b", "7", "/a::b", "-5"));
}

// Of two processes in a trace, only the one whose memory is shown counts.
TEST(TraceTest, OnlyTheProcessWhoseMemoryIsShownCounts) {
  const auto other = [](std::string text) {
    text.replace(text.find(R"("pid":1)"), 7, R"("pid":2)");
    return text;
  };
  const auto trace =
      Open(File(Step(1, 0, 100) + Op("a::a", 10, 20) + Memory(12, 5, 1, 5) +
                other(Step(9, 0, 50)) + other(Op("a::other", 10, 20))));

  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(trace->step().ops.size(), 1U);
  EXPECT_EQ(trace->step().ops[0].name, "a::a");
  EXPECT_EQ(trace->summary().duration_ns, 100'000);
}

TEST(TraceTest, TheGraphsMemoryIsTheTracedMemory) {
  const auto trace = Open(Training());
  const auto made = GraphOfTrace(*trace);

  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto graph = ToPlanner(made->graph);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  std::vector<planner::MemoryPoint> points;
  const auto walked = planner::Evaluate(
      *graph, planner::BaseSchedule(*graph, planner::FreePolicy::kEager), {},
      &points);
  ASSERT_TRUE(walked.ok());
  // begin 100; linear 100+400; gelu 500+800+60 inside; backward 1300+800.
  std::vector<int64_t> bytes;
  for (const auto& point : points) bytes.push_back(point.bytes);
  EXPECT_THAT(bytes, ElementsAre(100, 500, 1360, 2100));
  // The first op gets the time that no op accounts for: 1000 us - 3 * 100 us.
  EXPECT_EQ(graph->ops[0].time_ns, 700'000);
  EXPECT_EQ(walked->time_ns, 1'000'000);
}

TEST(TraceTest, ReadsAreTheOnesOfTheirSizeAndWhatIsGivenBack) {
  const auto trace = Open(Training());
  const auto made = GraphOfTrace(*trace);

  ASSERT_TRUE(made.ok());
  // gelu's input of 10 x 10 floats is x. The backward reads x and y: both are
  // freed after it.
  EXPECT_THAT(made->graph.ops(2).reads(), ElementsAre(0));
  EXPECT_THAT(made->graph.ops(3).reads(), ElementsAre(0, 1));
  EXPECT_EQ(made->graph.storages(0).category(), v1::CATEGORY_ACTIVATION);
  EXPECT_THAT(made->graph.required(), ElementsAre(2));
  EXPECT_EQ(made->certain, 2U);
  EXPECT_THAT(made->graph.note(), HasSubstr("is not in a trace"));
}

TEST(TraceTest, TakesTheStepThatIsAskedFor) {
  const std::string text =
      File(Step(3, 0, 100) + Op("aten::a", 10, 10) + Memory(15, 8, 1, 8) +
           Step(4, 100, 100) + Op("aten::b", 110, 10) + Memory(115, 16, 2, 24));

  EXPECT_EQ(Open(text)->step().ops.at(0).name, "aten::b");
  EXPECT_EQ(Open(text)->summary().baseline_bytes, 8);
  EXPECT_EQ(Open(text, 3)->step().ops.at(0).name, "aten::a");
  EXPECT_THAT(Open(text, 9).status().message(),
              HasSubstr("has no step 9, but 3 to 4"));
}

TEST(TraceTest, KernelsGiveTheTimesWhereThereAreAny) {
  const std::string text = File(
      Op("aten::mm", 10, 10, R"("External id":5)") + Memory(12, 8, 1, 8) +
      R"({"ph":"X","cat":"kernel","name":"sgemm","pid":0,"tid":7,"ts":500,)"
      R"("dur":30,"args":{"External id":5}},)"
      R"({"ph":"X","cat":"kernel","name":"sgemm","pid":0,"tid":7,"ts":540,)"
      R"("dur":12,"args":{"External id":5}},)");
  const auto made = GraphOfTrace(*Open(text));

  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->graph.ops(1).time_ns(), 42'000);
  EXPECT_EQ(made->graph.timing(), "kernels");
}

TEST(TraceTest, KernelsOfTheStepKeepTheirStreamNameAndTime) {
  const std::string text = File(
      Step(3, 0, 100) + Op("aten::mm", 10, 10, R"("External id":5)") +
      Memory(12, 8, 1, 8) +
      R"({"ph":"X","cat":"kernel","name":"sgemm","pid":0,"tid":7,"ts":30,)"
      R"("dur":40,"args":{"External id":5}},)"
      R"({"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD","pid":1,)"
      R"("tid":"stream 9","ts":90,"dur":30,"args":{}},)"
      R"({"ph":"X","cat":"kernel","name":"later","pid":0,"tid":7,"ts":300,)"
      R"("dur":40,"args":{"External id":5}},)");
  const auto trace = Open(text);
  ASSERT_TRUE(trace.ok());
  RecordingNames names;
  std::vector<RecordedKernel> kernels;
  ASSERT_TRUE(trace
                  ->ReplayKernels(names,
                                  [&](const RecordedKernel& kernel) {
                                    kernels.push_back(kernel);
                                    return OkStatus();
                                  })
                  .ok());

  ASSERT_EQ(kernels.size(), 2U);
  EXPECT_EQ(kernels[0].start_ns, 30'000);
  EXPECT_EQ(kernels[0].duration_ns, 40'000);
  EXPECT_EQ(kernels[0].stream, 7U);
  EXPECT_EQ(names.texts()[kernels[0].name - 1], "sgemm");
  EXPECT_EQ(kernels[1].kind, v1::RECORD_KIND_COPY);
  EXPECT_EQ(kernels[1].stream, 9U);
  EXPECT_EQ(kernels[1].device, 1U);
}

TEST(TraceTest, NamesWhatIsMissing) {
  EXPECT_THAT(Open(R"({"a": [1]})").status().message(),
              HasSubstr("no traceEvents"));
  EXPECT_THAT(Open(File("")).status().message(),
              HasSubstr("has no operator calls"));
  EXPECT_THAT(Open(File(Op("aten::a", 1, 1))).status().message(),
              HasSubstr("profile_memory=True"));
}

// Times as of a clock: far from 0, in microseconds.
std::string OfAClock(const std::string& broken) {
  return File(Op("aten::a", 1'700'000'000'100, 100) +
              Memory(1'700'000'000'110, 400, 1, 500) +
              Op("aten::b", 1'700'000'000'300, 100) +
              Memory(1'700'000'000'310, 800, 2, 1300) + broken);
}

TEST(TraceTest, EventsWhoseTimesCannotBeAreLeftOutAndCounted) {
  const auto whole = Open(OfAClock(""));
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  for (const std::string& broken :
       {Op("aten::c", 0, 100), Memory(0, 4000, 3, 9000),
        std::string(R"({"ph":"X","cat":"cpu_op","name":"aten::c","pid":1,)"
                    R"("tid":1,"ts":1e30,"dur":5},)"),
        std::string(R"({"ph":"X","cat":"cpu_op","name":"aten::c","pid":1,)"
                    R"("tid":1,"ts":1700000000350,"dur":7447335936e6},)"),
        std::string(R"({"ph":"X","cat":"cpu_op","name":"aten::c","pid":1,)"
                    R"("tid":1,"ts":1700000000350,"dur":-5},)")}) {
    const auto trace = Open(OfAClock(broken));
    ASSERT_TRUE(trace.ok()) << broken << trace.status().message();
    EXPECT_THAT(trace->summary().notes,
                testing::Contains(testing::StartsWith("1 of its events")))
        << broken;
    EXPECT_EQ(trace->summary().ops, whole->summary().ops) << broken;
    EXPECT_EQ(trace->summary().peak_bytes, whole->summary().peak_bytes);
    EXPECT_EQ(trace->summary().duration_ns, whole->summary().duration_ns);
  }
}

TEST(TraceTest, ATraceThatCountsFromItsOwnBeginMayBeginAtZero) {
  const auto trace = Open(Training());
  ASSERT_TRUE(trace.ok());
  EXPECT_THAT(trace->summary().notes,
              testing::Not(testing::Contains(HasSubstr("cannot be"))));
}

TEST(TraceTest, NamesTheByteThatIsWrong) {
  const std::string text = File(Op("aten::a", 1, 1) + "nonsense,");
  const auto trace = Open(text);

  EXPECT_EQ(trace.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(trace.status().message(), HasSubstr("byte "));
  EXPECT_THAT(
      Open(File("{\"name\":\"a\nb\"},")).status().message(),
      HasSubstr("a control character in a text; export with PyTorch 2.4"));
}

TEST(TraceTest, SaysAtWhichByteAFileWasCutOff) {
  const std::string text = File(Op("aten::a", 1, 1));
  for (size_t size = 1; size < text.size(); size += 7) {
    EXPECT_EQ(Open(text.substr(0, size)).status().message(),
              StrCat("byte ", size, ": the JSON ends too early"));
  }
  // A file that is wrong in its last byte is not one that ends too early.
  EXPECT_THAT(Open("{\"traceEvents\":]").status().message(),
              testing::StartsWith("byte 15: is not valid JSON"));
}

TEST(TraceTest, NamesTheByteOfAnEventThatCannotBe) {
  const std::string begin = "{\"traceEvents\":[";
  const std::string event =
      R"({"ph":"i","name":"[memory]","args":{"Bytes":4611686018427387904}})";

  EXPECT_EQ(Open(begin + event + "]}").status().message(),
            StrCat("byte ", begin.size() + event.size() + 1,
                   ": a memory event of 4611686018427387904 bytes"));
}

TEST(TraceTest, LimitsDepthAndTexts) {
  EXPECT_EQ(Open(std::string(1000, '[')).status(),
            ResourceExhausted("byte 66: the JSON nests more than 64 deep"));
  EXPECT_THAT(
      Open("{\"a\": \"" + std::string(5 << 20, 'x') + "\"}").status().message(),
      HasSubstr("a text of more than 4 MiB"));
}

TEST(TraceTest, WhatIsNeitherTextNorNumberIsNotCollectedWithoutEnd) {
  const std::string begin = "{\"traceEvents\": [";
  std::string lists;
  for (int i = 0; i < 2 << 20; ++i) lists += "[],";
  for (const std::string& filling :
       {std::string(5 << 20, ' '), std::string(5 << 20, '7'),
        "-" + std::string(5 << 20, '7'), lists}) {
    const Status status = Open(begin + filling).status();
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_THAT(status.message(),
                HasSubstr("no text and no number in more than 4 MiB"));
  }
  EXPECT_EQ(Open(std::string(5 << 20, '\n') + begin).status().code(),
            Code::kResourceExhausted);
}

}  // namespace
}  // namespace reprise::formats
