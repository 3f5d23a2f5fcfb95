// Windows, records and op links of the device tracer, in every layout.
#include "tests/profiler/cupti_test.h"

#include <gmock/gmock.h>

#include <set>
#include <thread>

namespace reprise::profiler::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(CuptiTest, EveryFieldIsTheSameInEveryLayout) {
  for (const Layout layout : kAllLayouts) {
    In(layout, [&](FakeCupti& cupti) {
      Collector collector(socket_, shelf_);
      ASSERT_EQ(Start(), REPRISE_OK) << Why();
      ASSERT_EQ(reprise_window_begin(0), REPRISE_OK);
      const uint64_t before = Monotonic();

      reprise_op_begin(42, Intern("aten::mm"), 0, 0, 0, 0);
      const uint32_t launch = cupti.Launch("sgemm_128x64", 12345, false);
      reprise_op_end(42);
      cupti.LaunchGraph("fused", 2, 77);
      cupti.Copy(4096, 2);
      cupti.Peer(8192);
      cupti.Set(512);
      cupti.Memory(0x7000, 1 << 20, false, 3);
      cupti.Memory(0x7000, 1 << 20, true, 3);
      cupti.Memory(0x9000, 64, false, 2);  // pinned: on the host
      cupti.Pool(0xa000, 1 << 21, 1);
      cupti.Unknown();
      cupti.Overhead(500);
      cupti.Launch("last", 1, false);
      ASSERT_EQ(reprise_window_end(), REPRISE_OK);
      ASSERT_EQ(reprise_flush(10000), REPRISE_OK);
      ASSERT_TRUE(collector.WaitForSession(KnowsItsKernels));

      const Session session = collector.OnlySession();
      const auto kernels = Of(session, REPRISE_RECORD_KERNEL);
      ASSERT_EQ(kernels.size(), 4u);
      const reprise_slot& kernel = kernels[0];
      EXPECT_EQ(kernel.body.kernel.dur, 12345u);
      EXPECT_EQ(kernel.body.kernel.correlation, launch);
      EXPECT_EQ(session.names.at(kernel.body.kernel.name), "sgemm_128x64");
      EXPECT_EQ(kernel.body.kernel.device, 1u);
      EXPECT_EQ(kernel.body.kernel.context, 2u);
      EXPECT_EQ(kernel.body.kernel.stream, 7u);
      EXPECT_EQ(kernel.body.kernel.graph_id, 0u);
      EXPECT_EQ(kernel.body.kernel.flags, 0u);
      // The agent's clock, not CUPTI's default.
      EXPECT_EQ(kernel.clock_id, REPRISE_CLOCK_MONOTONIC);
      EXPECT_GE(kernel.ts_ns, before);
      EXPECT_LE(kernel.ts_ns, Monotonic());

      for (int node = 0; node < 2; ++node) {
        const auto& of_graph = kernels[1 + node].body.kernel;
        EXPECT_EQ(of_graph.graph_id, 77u);
        EXPECT_EQ(of_graph.graph_node_or_bytes, 100u + node);
        EXPECT_EQ(of_graph.flags, REPRISE_KERNEL_IN_GRAPH);
      }

      const auto copies = Of(session, REPRISE_RECORD_COPY);
      ASSERT_EQ(copies.size(), 2u);
      EXPECT_EQ(copies[0].body.kernel.graph_node_or_bytes, 4096u);
      EXPECT_EQ(copies[0].body.kernel.dur, 500u);
      EXPECT_EQ(copies[0].body.kernel.stream, 9u);
      EXPECT_EQ(copies[0].body.kernel.flags >> REPRISE_KERNEL_COPY_KIND_SHIFT,
                2);
      EXPECT_EQ(copies[1].body.kernel.graph_node_or_bytes, 8192u);
      EXPECT_EQ(copies[1].body.kernel.dur, 600u);
      EXPECT_NE(copies[1].body.kernel.correlation, 0u);
      const auto sets = Of(session, REPRISE_RECORD_SET);
      ASSERT_EQ(sets.size(), 1u);
      EXPECT_EQ(sets[0].body.kernel.graph_node_or_bytes, 512u);

      const auto memory = Of(session, REPRISE_RECORD_ALLOC);
      ASSERT_EQ(memory.size(), 4u);
      EXPECT_EQ(memory[0].body.alloc.address, 0x7000u);
      EXPECT_EQ(memory[0].body.alloc.bytes, 1 << 20);
      EXPECT_EQ(memory[0].body.alloc.device, 1);
      EXPECT_EQ(memory[0].body.alloc.what, uint32_t{REPRISE_DRIVER});
      EXPECT_EQ(memory[1].body.alloc.bytes, -(1 << 20));
      EXPECT_EQ(memory[2].body.alloc.device, -1);
      EXPECT_EQ(memory[3].body.alloc.what, uint32_t{REPRISE_POOL});
      EXPECT_EQ(memory[3].body.alloc.bytes, 1 << 21);

      const auto links = Of(session, REPRISE_RECORD_LINK);
      ASSERT_EQ(links.size(), 1u);
      EXPECT_EQ(links[0].body.api.external_id, 42u);
      EXPECT_EQ(links[0].body.api.correlation, launch);
      const auto calls = Of(session, REPRISE_RECORD_API);
      ASSERT_GE(calls.size(), 3u);
      EXPECT_EQ(calls[0].body.api.cbid, 211u);
      EXPECT_EQ(calls[0].thread, static_cast<uint32_t>(gettid()));

      EXPECT_THAT(session.capabilities, HasSubstr("cupti_unknown=1\n"));
      EXPECT_FALSE(cupti.finalized);
      EXPECT_FALSE(cupti.serial_kernels);
      EXPECT_FALSE(cupti.period_set);
      EXPECT_FALSE(cupti.hardware_events);
      EXPECT_EQ(cupti.dirty_buffers, 0u);
    });
  }
}

TEST_F(CuptiTest, NothingIsTouchedBeforeAWindow) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    ASSERT_EQ(Start(), REPRISE_OK);
    for (uint64_t step = 0; step < 100; ++step) {
      reprise_step(step);
      reprise_op_begin(step, 0, 0, 0, 0, 0);
      reprise_op_end(step);
    }

    EXPECT_EQ(cupti.calls, 0u);
    EXPECT_EQ(cupti.buffers_out, 0u);
    EXPECT_EQ(Capabilities().cupti, 3u);
    EXPECT_EQ(Capabilities().cupti_device_bytes, 0u);
  });
}

TEST_F(CuptiTest, AWindowPutsEverythingBackButTheClock) {
  for (const Layout layout : kAllLayouts) {
    In(layout, [&](FakeCupti& cupti) {
      Collector collector(socket_, shelf_);
      Start();
      const std::vector<uint64_t> before(cupti.attribute, cupti.attribute + 16);
      for (int window = 0; window < 3; ++window) {
        ASSERT_EQ(reprise_window_begin(0), REPRISE_OK);
        EXPECT_EQ(cupti.attribute[2], 4u);  // device buffers are bounded
        EXPECT_EQ(cupti.attribute[9], 0u);
        EXPECT_EQ(cupti.thread_id_type, 1u);
        EXPECT_EQ(Capabilities().cupti_device_bytes, 4u * 3200000u);
        EXPECT_LE(Capabilities().cupti_device_bytes, 16u << 20);
        cupti.Launch("kernel", 10, false);
        reprise_window_end();
      }

      EXPECT_EQ(cupti.subscribes, 3u);
      EXPECT_EQ(cupti.unsubscribes, 3u);
      EXPECT_EQ(cupti.enabled_kinds, 0u);
      EXPECT_EQ(cupti.buffers_out, 0u);
      EXPECT_EQ(cupti.forced_flushes, 0u);
      EXPECT_EQ(cupti.thread_id_type, 0u);
      EXPECT_EQ(std::vector<uint64_t>(cupti.attribute, cupti.attribute + 16),
                before);
      EXPECT_EQ(Capabilities().cupti_device_bytes, 0u);
      // All but the clock, which cannot be taken back and must not jump.
      EXPECT_NEAR(static_cast<double>(cupti.clock()) / 1e9,
                  static_cast<double>(Monotonic()) / 1e9, 5.0);
      ASSERT_EQ(reprise_flush(10000), REPRISE_OK);
      EXPECT_EQ(collector.OnlySession().Count(REPRISE_RECORD_KERNEL), 3u);
    });
  }
}

// CUPTI may ask for the time whenever it likes, also between two windows, and
// places kernels by what it was told.
TEST_F(CuptiTest, KernelsOfLaterWindowsLieWhereTheyRan) {
  for (const Layout layout : kAllLayouts) {
    In(layout, [&](FakeCupti& cupti) {
      Collector collector(socket_, shelf_);
      Start();
      cupti.interpolates = true;
      cupti.TakeClockPair(0);  // as when the context is created
      uint64_t before[4];
      for (uint64_t window = 0; window < 3; ++window) {
        before[window] = Monotonic();
        ASSERT_EQ(reprise_window_begin(0), REPRISE_OK);
        cupti.Launch("kernel", 1000 + window, false);
        reprise_window_end();
        cupti.TakeClockPair(0);
      }
      before[3] = Monotonic();
      ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

      const auto kernels = Of(collector.OnlySession(), REPRISE_RECORD_KERNEL);
      ASSERT_EQ(kernels.size(), 3u);
      for (size_t window = 0; window < 3; ++window) {
        // Between reading the two clocks of a pair some time passes.
        EXPECT_GE(kernels[window].ts_ns + 20'000'000, before[window]);
        EXPECT_LE(kernels[window].ts_ns, before[window + 1] + 20'000'000);
      }
    });
  }
}

TEST_F(CuptiTest, OpsOfSeveralThreadsKeepTheirKernels) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start(1u << 16);
    ASSERT_EQ(reprise_window_begin(0), REPRISE_OK);
    // A forward thread and two of autograd's threads, with nested ops.
    const auto work = [&cupti](uint64_t first) {
      for (uint64_t op = first; op < first + 200; op += 2) {
        reprise_op_begin(op, 0, 0, 0, 0, 0);
        cupti.Launch("outer", op, false);
        reprise_op_begin(op + 1, 0, 0, op, 0, 0);
        cupti.Launch("inner", op + 1, false);
        reprise_op_end(op + 1);
        cupti.Launch("outer again", op, false);
        reprise_op_end(op);
      }
      cupti.Launch("of no op", 9, false);
    };
    std::thread one(work, 1000), two(work, 2000);
    work(3000);
    one.join();
    two.join();
    reprise_window_end();
    ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

    const Session session = collector.OnlySession();
    std::map<uint32_t, uint64_t> op_of;
    for (const reprise_slot& link : Of(session, REPRISE_RECORD_LINK))
      op_of[link.body.api.correlation] = link.body.api.external_id;
    const auto kernels = Of(session, REPRISE_RECORD_KERNEL);
    ASSERT_EQ(kernels.size(), 3u * (100 * 3 + 1));
    for (const reprise_slot& kernel : kernels) {
      const auto found = op_of.find(kernel.body.kernel.correlation);
      const uint64_t op = found == op_of.end() ? 9 : found->second;
      // Each kernel's duration identifies its op.
      EXPECT_EQ(op, kernel.body.kernel.dur);
    }
    EXPECT_EQ(cupti.pops_of_nothing, 0u);
  });
}

TEST_F(CuptiTest, IdsAreBalancedWhateverEndsFirst) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    // Begins outside the window, ends inside.
    reprise_op_begin(1, 0, 0, 0, 0, 0);
    reprise_window_begin(0);
    reprise_op_end(1);
    // Begins inside the window, ends outside.
    reprise_op_begin(2, 0, 0, 0, 0, 0);
    // Never ends, as after an exception.
    reprise_op_begin(3, 0, 0, 0, 0, 0);
    reprise_window_end();
    reprise_op_end(2);
    reprise_window_begin(0);
    reprise_op_begin(4, 0, 0, 0, 0, 0);
    reprise_step(1);
    // More nested ops than the agent follows: it keeps the outermost ones.
    for (uint64_t op = 100; op < 140; ++op) reprise_op_begin(op, 0, 0, 0, 0, 0);
    for (uint64_t op = 140; op-- > 100;) reprise_op_end(op);
    cupti.Launch("of no op", 5, false);
    reprise_window_end();
    ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

    EXPECT_EQ(collector.OnlySession().Count(REPRISE_RECORD_LINK), 0u);
    EXPECT_EQ(cupti.pops_of_nothing, 0u);
  });
}

TEST_F(CuptiTest, KernelsThatRunAtTheEndOfAWindowStillBringTheirTimes) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    reprise_window_begin(0);
    cupti.Launch("done", 5, false);
    cupti.Launch("running", 0, true);
    reprise_window_end();
    // The agent stays subscribed: its buffer must not be delivered to another
    // client.
    EXPECT_EQ(cupti.unsubscribes, 0u);
    EXPECT_EQ(cupti.enabled_kinds, 0u);

    cupti.Synchronize();
    ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

    EXPECT_EQ(cupti.unsubscribes, 1u);
    EXPECT_EQ(cupti.forced_flushes, 0u);
    EXPECT_EQ(cupti.buffers_out, 0u);
    EXPECT_EQ(collector.OnlySession().Count(REPRISE_RECORD_KERNEL), 2u);
    EXPECT_EQ(Capabilities().untimed, 0u);
  });
}

TEST_F(CuptiTest, ARunningKernelDoesNotKeepTheSlotForEver) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    reprise_window_begin(0);
    cupti.Launch("never ends", 0, true);
    reprise_window_end();
    for (uint64_t step = 0; cupti.unsubscribes == 0 && step < 4000; ++step) {
      reprise_step(step);
      usleep(1000);
    }

    EXPECT_EQ(cupti.unsubscribes, 1u);
    EXPECT_EQ(cupti.forced_flushes, 1u);
    EXPECT_EQ(Capabilities().untimed, 1u);
    reprise_flush(10000);
    const auto kernels = Of(collector.OnlySession(), REPRISE_RECORD_KERNEL);
    ASSERT_EQ(kernels.size(), 1u);
    EXPECT_EQ(kernels[0].body.kernel.flags, REPRISE_KERNEL_UNTIMED);
  });
}

TEST_F(CuptiTest, ACommandOpensAWindowForSoManySteps) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    collector.Send(REPRISE_MSG_COMMAND,
                   CommandBody(REPRISE_COMMAND_WINDOW_BEGIN, 0, 3));
    uint64_t step = 0;
    while (cupti.enabled_kinds == 0 && step < 10000) {
      reprise_step(step++);
      usleep(500);
    }
    ASSERT_NE(cupti.enabled_kinds, 0u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_NE(cupti.enabled_kinds, 0u);
      cupti.Launch("kernel", 5, false);
      reprise_step(step++);
    }

    EXPECT_EQ(cupti.enabled_kinds, 0u);
    EXPECT_EQ(cupti.unsubscribes, 1u);
    EXPECT_EQ(reprise_window_kinds(), 0u);
    reprise_flush(10000);
    EXPECT_EQ(collector.OnlySession().Count(REPRISE_RECORD_KERNEL), 3u);
  });
}

TEST_F(CuptiTest, FullBuffersOfItsOwnThreadLoseNothing) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    constexpr uint32_t kKernels = 60000;  // about 16 buffers
    Collector collector(socket_, shelf_);
    Start(1u << 18);
    cupti.own_thread = true;
    reprise_window_begin(REPRISE_KIND_KERNELS);
    std::vector<std::string> names;
    for (int i = 0; i < 50; ++i) names.push_back("kernel " + std::to_string(i));
    for (uint32_t i = 0; i < kKernels; ++i)
      cupti.Launch(names[i % 50].c_str(), i, false);
    reprise_window_end();
    ASSERT_EQ(reprise_flush(30000), REPRISE_OK);
    ASSERT_TRUE(collector.WaitForSession(KnowsItsKernels));

    const Session session = collector.OnlySession();
    std::set<uint64_t> seen;
    for (const reprise_slot& kernel : Of(session, REPRISE_RECORD_KERNEL)) {
      EXPECT_TRUE(seen.insert(kernel.body.kernel.dur).second);
      EXPECT_EQ(session.names.at(kernel.body.kernel.name),
                names[kernel.body.kernel.dur % 50]);
    }
    EXPECT_EQ(seen.size(), kKernels);
    EXPECT_EQ(cupti.dirty_buffers, 0u);
    EXPECT_EQ(Capabilities().cupti_dropped, 0u);
  });
}

TEST_F(CuptiTest, ANameInAnotherPlaceOrAnotherNameInItsPlaceAreToldApart) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    char place[64];
    for (int i = 0; i < 6; ++i) {
      snprintf(place, sizeof place, "kernel %d", i % 2);
      reprise_window_begin(REPRISE_KIND_KERNELS);
      cupti.Launch(place, static_cast<uint64_t>(i), false);
      reprise_window_end();
    }
    reprise_flush(10000);
    ASSERT_TRUE(collector.WaitForSession(KnowsItsKernels));

    const Session session = collector.OnlySession();
    const auto kernels = Of(session, REPRISE_RECORD_KERNEL);
    ASSERT_EQ(kernels.size(), 6u);
    for (const reprise_slot& kernel : kernels)
      EXPECT_EQ(session.names.at(kernel.body.kernel.name),
                kernel.body.kernel.dur % 2 == 0 ? "kernel 0" : "kernel 1");
  });
}

}  // namespace
}  // namespace reprise::profiler::testing
