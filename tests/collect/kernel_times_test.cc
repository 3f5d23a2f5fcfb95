// SPDX-License-Identifier: Apache-2.0
//
// From a kernel's launch to the time of its op: the real agent over the fake
// libcupti, whose clock pairs may be of another clock, and the collector's join
// of what it records.
#include <gmock/gmock.h>

#include "server/collect/op_join.h"
#include "server/collect/plan_relay.h"
#include "tests/profiler/cupti_test.h"

namespace reprise::server {
namespace {

using ::testing::StartsWith;

class KernelTimesTest : public profiler::testing::CuptiTest {
 protected:
  using Layout = profiler::testing::Layout;

  // Runs a step of ten ops, each with a kernel of 7,000 ns, and returns its
  // graph with what was measured. The host had measured 1 ns for every op.
  static v1::StepGraph Step(FakeCupti& cupti, uint64_t first_op,
                            int64_t clock_off_ns) {
    reprise_window_begin(REPRISE_KIND_KERNELS | REPRISE_KIND_OPS);
    cupti.TakeClockPair(clock_off_ns);
    v1::StepGraph graph;
    graph.set_measured_step_ns(100'000'000);
    for (uint64_t op = first_op; op < first_op + 10; ++op) {
      reprise_op_begin(op, 0, 0, 0, 0, 0);
      cupti.Launch("kernel", 7000, false);
      reprise_op_end(op);
      v1::Op& added = *graph.add_ops();
      added.set_name("aten.mm.default");
      added.set_time_ns(1);
      added.add_agent_ops(op);
    }
    reprise_window_end();
    return graph;
  }

  // Fills in what the session's records say.
  static void Measure(profiler::testing::Collector& collector,
                      v1::StepGraph& graph) {
    ASSERT_EQ(reprise_flush(10000), REPRISE_OK);
    OpJoin join;
    for (const reprise_slot& record : collector.OnlySession().records) {
      join.Take(record);
    }
    ApplyMeasurement(*join.Measure(), graph);
  }
};

TEST_F(KernelTimesTest, AWindowWithOneClockTimesItsOpsByTheirKernels) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    profiler::testing::Collector collector(socket_, shelf_);
    Start();
    cupti.interpolates = true;
    v1::StepGraph first = Step(cupti, 1, 0);
    v1::StepGraph second = Step(cupti, 101, 0);

    for (v1::StepGraph* graph : {&first, &second}) {
      Measure(collector, *graph);
      EXPECT_EQ(graph->timing(), "kernels");
      // As long as the fake says, up to what passes between the readings of the
      // two clocks.
      EXPECT_NEAR(static_cast<double>(graph->ops(4).time_ns()), 7000, 6000);
    }
  });
}

// A clock pair of another clock in a window: kernels lie before their ops and
// take longer than they took, or end before they begin.
TEST_F(KernelTimesTest, AWindowWithTwoClocksIsTimedByTheHostAndTheNextIsNot) {
  constexpr int64_t kYearsNs = 1'700'000'000'000'000'000;
  for (const auto& [off_ns, why] :
       {std::pair{-int64_t{20'000'000'000},
                  "host: kernels lie far from their ops: of 10 ops with "
                  "kernels, 10 have one that begins before the op"},
        std::pair{kYearsNs,
                  "host: records of the captured step are missing"}}) {
    In(Layout::k130, [&, off_ns = off_ns, why = why](FakeCupti& cupti) {
      profiler::testing::Collector collector(socket_, shelf_);
      Start();
      cupti.interpolates = true;
      v1::StepGraph bad = Step(cupti, 1, off_ns);
      cupti.TakeClockPair(0);
      v1::StepGraph good = Step(cupti, 101, 0);

      Measure(collector, bad);
      EXPECT_THAT(bad.timing(), StartsWith(why));
      for (const v1::Op& op : bad.ops()) EXPECT_EQ(op.time_ns(), 1);
      EXPECT_EQ(bad.launch_gap_ns(), 0);
      Measure(collector, good);
      EXPECT_EQ(good.timing(), "kernels");
    });
  }
}

}  // namespace
}  // namespace reprise::server
