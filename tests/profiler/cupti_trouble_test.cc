// The device tracer fails completely or in part: one test per row of the
// failure table that concerns it. The job continues in all of them.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <filesystem>
#include <thread>

#include "tests/profiler/cupti_test.h"

namespace reprise::profiler::testing {
namespace {

using ::testing::HasSubstr;

class CuptiTroubleTest : public CuptiTest {
 protected:
  // Allocator events and ops work whatever CUPTI does.
  static void ExpectTheRestWorks(Collector& collector) {
    reprise_op_begin(1, Intern("op"), 0, 0, 0, 0);
    reprise_alloc(1, 64, 0, 0, REPRISE_ALLOC, 0);
    reprise_op_end(1);
    ASSERT_EQ(reprise_flush(10000), REPRISE_OK);
    const Session session = collector.OnlySession();
    EXPECT_GE(session.Count(REPRISE_RECORD_ALLOC), 1u);
    EXPECT_GE(session.Count(REPRISE_RECORD_OP_BEGIN), 1u);
  }
};

TEST_F(CuptiTroubleTest, NoDriverIsSaidOnceAndAskedForOnce) {
  Apart([&] {
    FakeCupti& cupti = Load(Layout::k130);
    Collector collector(socket_, shelf_);
    EXPECT_EQ(Start(), REPRISE_DEGRADED);
    EXPECT_EQ(reprise_window_begin(0), REPRISE_DEGRADED);
    EXPECT_THAT(Why(), HasSubstr("no NVIDIA driver"));
    for (uint64_t step = 0; step < 50; ++step) reprise_step(step);
    ExpectTheRestWorks(collector);
    EXPECT_EQ(cupti.calls, 0u);
    EXPECT_EQ(Capabilities().cupti, 0u);
  });
}

TEST_F(CuptiTroubleTest, ADriverThatDoesNotWorkMakesItInertForGood) {
  for (const auto& [layout, answer] :
       {std::pair{Layout::k130, 999}, std::pair{Layout::k118, 15}}) {
    In(layout, [&, answer = answer](FakeCupti& cupti) {
      Collector collector(socket_, shelf_);
      cupti.no_driver = answer;
      Start();
      for (int window = 0; window < 20; ++window) {
        EXPECT_EQ(reprise_window_begin(0), REPRISE_DEGRADED);
        reprise_step(static_cast<uint64_t>(window));
        reprise_window_end();
      }
      // The agent stops trying, as each failing call would look for a driver
      // again.
      EXPECT_LE(cupti.calls, 2u);
      EXPECT_THAT(Why(), HasSubstr("answers " + std::to_string(answer)));
      EXPECT_EQ(Capabilities().cupti, 1u);
      ExpectTheRestWorks(collector);
    });
  }
}

// NVIDIA's own library, if installed, with a driver that has no device.
TEST_F(CuptiTroubleTest, TheRealLibraryWithoutADeviceLeavesTheJobAlone) {
  const std::string real = RealCupti(REPRISE_REAL_CUPTI);
  if (real.empty())
    GTEST_SKIP() << "no libcupti of a CUDA toolkit on this machine";
  Apart([&] {
    LoadDriver();
    setenv("REPRISE_CUPTI_PATH", real.c_str(), 1);
    Collector collector(socket_, shelf_);
    Start();
    EXPECT_GE(Capabilities().cupti_version, 18u);
    for (int window = 0; window < 5; ++window) {
      EXPECT_EQ(reprise_window_begin(0), REPRISE_DEGRADED);
      reprise_window_end();
    }
    EXPECT_THAT(Why(), HasSubstr("cuptiSubscribe answers"));
    ExpectTheRestWorks(collector);
  });
}

TEST_F(CuptiTroubleTest, ALibraryThatIsNoneIsNamed) {
  Apart([&] {
    LoadDriver();
    setenv("REPRISE_CUPTI_PATH", "/nowhere/libcupti.so", 1);
    Collector collector(socket_, shelf_);
    EXPECT_EQ(Start(), REPRISE_DEGRADED);
    EXPECT_EQ(reprise_window_begin(0), REPRISE_DEGRADED);
    EXPECT_THAT(Why(), HasSubstr("/nowhere/libcupti.so"));
    ExpectTheRestWorks(collector);
  });
  // The file is a library, but not libcupti.
  Apart([&] {
    LoadDriver();
    setenv("REPRISE_CUPTI_PATH", REPRISE_FAKE_CUDA, 1);
    Collector collector(socket_, shelf_);
    EXPECT_EQ(Start(), REPRISE_DEGRADED);
    EXPECT_EQ(reprise_window_begin(0), REPRISE_DEGRADED);
    EXPECT_THAT(Why(), HasSubstr("has no cuptiGetVersion"));
    ExpectTheRestWorks(collector);
  });
}

TEST_F(CuptiTroubleTest, ALibraryThatIsTooOldIsRefused) {
  In(Layout::k118, [&](FakeCupti& cupti) {
    cupti.version = 17;
    Collector collector(socket_, shelf_);
    EXPECT_EQ(Start(), REPRISE_DEGRADED);
    EXPECT_EQ(reprise_window_begin(0), REPRISE_DEGRADED);
    EXPECT_THAT(Why(), HasSubstr("API version 17"));
    EXPECT_EQ(cupti.calls, 0u);
  });
}

TEST_F(CuptiTroubleTest, TheHolderOfTheSlotIsNamedAndTheNextWindowTriesAgain) {
  for (const Layout layout : kAllLayouts) {
    In(layout, [&](FakeCupti& cupti) {
      Collector collector(socket_, shelf_);
      Start();
      strcpy(cupti.holder, "CUPTI for Kineto");
      EXPECT_EQ(reprise_window_begin(0), REPRISE_DEGRADED);
      const bool names = layout == Layout::k130;  // older calls do not name it
      EXPECT_THAT(Why(), HasSubstr(names ? "held by CUPTI for Kineto"
                                         : "held by another tool"));
      EXPECT_THAT(Why(), HasSubstr("`reprise import` reads"));
      EXPECT_STREQ(Capabilities().holder, names ? "CUPTI for Kineto" : "");
      EXPECT_EQ(Capabilities().cupti, 1u);
      EXPECT_EQ(cupti.enabled_kinds, 0u);
      ExpectTheRestWorks(collector);
      reprise_window_end();

      cupti.holder[0] = 0;
      EXPECT_EQ(reprise_window_begin(0), REPRISE_OK) << Why();
      EXPECT_EQ(Capabilities().cupti, 3u);
      EXPECT_STREQ(Capabilities().holder, "");
      cupti.Launch("kernel", 5, false);
      reprise_window_end();
      reprise_flush(10000);
      EXPECT_EQ(collector.OnlySession().Count(REPRISE_RECORD_KERNEL), 1u);
    });
  }
}

TEST_F(CuptiTroubleTest, AnOpenWindowTakesTheSlotWhenItBecomesFree) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    strcpy(cupti.holder, "Nsight Systems");
    EXPECT_EQ(reprise_window_begin(0), REPRISE_DEGRADED);
    cupti.holder[0] = 0;
    uint64_t step = 0;
    for (; cupti.enabled_kinds == 0 && step < 5000; ++step) {
      reprise_step(step);
      usleep(1000);
    }
    EXPECT_NE(cupti.enabled_kinds, 0u);
    EXPECT_GT(step, 1u);              // not in every step
    EXPECT_LE(cupti.subscribes, 5u);  // at most once a second
  });
}

TEST_F(CuptiTroubleTest, PauseGivesTheSlotToAnotherProfilerAtOnce) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    reprise_window_begin(0);
    cupti.Launch("running", 0, true);
    ASSERT_EQ(reprise_pause(), REPRISE_OK);

    EXPECT_EQ(cupti.unsubscribes, 1u);
    EXPECT_EQ(cupti.buffers_out, 0u);  // none can still reach our callback
    EXPECT_EQ(cupti.attribute[5], 0u);
    EXPECT_EQ(cupti.thread_id_type, 0u);
    for (uint64_t step = 0; step < 10; ++step) reprise_step(step);
    EXPECT_EQ(cupti.subscribes, 1u);

    ASSERT_EQ(reprise_resume(), REPRISE_OK);
    EXPECT_EQ(cupti.subscribes, 2u);
    EXPECT_NE(cupti.enabled_kinds, 0u);
  });
}

TEST_F(CuptiTroubleTest, WhatCuptiDropsIsCountedAndDated) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    const uint64_t before = Monotonic();
    reprise_window_begin(REPRISE_KIND_KERNELS);
    cupti.Launch("kept", 1, false);
    cupti.lose = 25;
    for (int i = 0; i < 30; ++i) cupti.Launch("some lost", 2, false);
    reprise_window_end();
    ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

    const Session session = collector.OnlySession();
    EXPECT_EQ(session.Count(REPRISE_RECORD_KERNEL), 6u);
    const auto losses = Of(session, REPRISE_RECORD_LOSS);
    ASSERT_EQ(losses.size(), 1u);
    EXPECT_EQ(losses[0].body.loss.count, 25u);
    EXPECT_EQ(losses[0].body.loss.why, uint32_t{REPRISE_LOSS_DEVICE});
    EXPECT_GE(losses[0].ts_ns, before);
    EXPECT_GE(losses[0].body.loss.last_ts, losses[0].ts_ns);
    EXPECT_EQ(Capabilities().cupti_dropped, 25u);
    EXPECT_THAT(session.capabilities, HasSubstr("cupti_dropped=25\n"));
  });
}

TEST_F(CuptiTroubleTest, ExhaustedHostBuffersAreLossesAndNoCrash) {
  for (const Layout layout : kAllLayouts) {
    In(layout, [&](FakeCupti& cupti) {
      Collector collector(socket_, shelf_);
      Start(1u << 18);
      reprise_window_begin(REPRISE_KIND_KERNELS);
      // Kernels that do not end keep every buffer in CUPTI's hands.
      for (int i = 0; i < 220000; ++i) cupti.Launch("running", 0, true);
      EXPECT_GE(cupti.buffers_out, 32u);
      EXPECT_EQ(cupti.buffers_refused > 0, layout == Layout::k130);
      cupti.Synchronize();
      reprise_window_end();
      reprise_flush(30000);

      EXPECT_GT(Capabilities().cupti_dropped, 0u);
      EXPECT_GT(collector.OnlySession().Count(REPRISE_RECORD_LOSS), 0u);
      // The next window works.
      reprise_window_begin(REPRISE_KIND_KERNELS);
      cupti.Launch("fine", 7, false);
      reprise_window_end();
      ASSERT_EQ(reprise_flush(30000), REPRISE_OK);
      const auto kernels = Of(collector.OnlySession(), REPRISE_RECORD_KERNEL);
      ASSERT_FALSE(kernels.empty());
      EXPECT_EQ(kernels.back().body.kernel.dur, 7u);
      // An older library cannot be refused a buffer: it gets one whose records
      // are discarded.
      if (layout == Layout::k130) {
        EXPECT_EQ(cupti.dirty_buffers, 0u);
      }
    });
  }
}

TEST_F(CuptiTroubleTest, KernelsWithoutTimesAreCountedAndNotDrawnAt1970) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    const uint64_t before = Monotonic();
    reprise_window_begin(REPRISE_KIND_KERNELS);
    cupti.untimed = true;
    cupti.Launch("untimed", 9, false);
    reprise_window_end();
    reprise_flush(10000);

    const auto kernels = Of(collector.OnlySession(), REPRISE_RECORD_KERNEL);
    ASSERT_EQ(kernels.size(), 1u);
    EXPECT_EQ(kernels[0].body.kernel.flags, REPRISE_KERNEL_UNTIMED);
    EXPECT_EQ(kernels[0].body.kernel.dur, 0u);
    EXPECT_GE(kernels[0].ts_ns, before);
    EXPECT_EQ(Capabilities().untimed, 1u);
  });
}

TEST_F(CuptiTroubleTest, AKindThatIsRefusedLeavesTheOthers) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    cupti.enable_result[39] = 35;  // external correlation: not allowed
    cupti.enable_result[49] = 27;
    EXPECT_EQ(reprise_window_begin(0), REPRISE_OK);
    EXPECT_EQ(Capabilities().cupti, 2u);  // kernels, not ops
    EXPECT_THAT(Why(), HasSubstr("administrators"));
    reprise_op_begin(1, 0, 0, 0, 0, 0);
    cupti.Launch("kernel", 3, false);
    reprise_op_end(1);
    reprise_window_end();
    reprise_flush(10000);
    const Session session = collector.OnlySession();
    EXPECT_EQ(session.Count(REPRISE_RECORD_KERNEL), 1u);
    EXPECT_GE(session.Count(REPRISE_RECORD_API), 1u);  // links ops by time
  });
}

TEST_F(CuptiTroubleTest, WithoutKernelsTheSlotIsGivenBack) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    cupti.enable_result[10] = 43;
    EXPECT_EQ(reprise_window_begin(0), REPRISE_DEGRADED);
    EXPECT_THAT(Why(), HasSubstr("MIG"));
    EXPECT_EQ(cupti.unsubscribes, 1u);
    EXPECT_EQ(cupti.enabled_kinds, 0u);
    ExpectTheRestWorks(collector);
  });
}

TEST_F(CuptiTroubleTest, AnotherClientsBufferIsLeftAlone) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    reprise_window_begin(REPRISE_KIND_KERNELS);
    cupti.ReturnForeignBuffer();
    cupti.Launch("ours", 1, false);
    reprise_window_end();
    reprise_flush(10000);
    EXPECT_EQ(collector.OnlySession().Count(REPRISE_RECORD_KERNEL), 1u);
  });
}

TEST_F(CuptiTroubleTest, AForkInsideAWindowIsInertAndMayStillFlush) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    reprise_window_begin(0);
    reprise_op_begin(1, 0, 0, 0, 0, 0);
    cupti.Launch("of the parent", 1, false);
    for (int i = 0; i < 30; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        reprise_op_end(1);
        reprise_op_begin(2, 0, 0, 0, 0, 0);
        cupti.Launch("of the child", 2, false);
        for (uint64_t step = 0; step < 5; ++step) reprise_step(step);
        // Flushes as CUPTI's own exit handler does: buffers come back to the
        // agent.
        using Flush = int (*)(uint32_t);
        void* library = dlopen(FakeCuptiPath(Layout::k130).c_str(), RTLD_NOW);
        reinterpret_cast<Flush>(dlsym(library, "cuptiActivityFlushAll"))(1);
        _exit(reprise_flush(0) == REPRISE_INERT ? 0 : 1);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << "child " << i;
    }
    reprise_op_end(1);
    reprise_window_end();
    ASSERT_EQ(reprise_flush(10000), REPRISE_OK);
    const Session session = collector.OnlySession();
    EXPECT_EQ(session.Count(REPRISE_RECORD_KERNEL), 1u);
    EXPECT_EQ(session.Count(REPRISE_RECORD_LINK), 1u);
  });
}

TEST_F(CuptiTroubleTest, StoppingInAWindowBringsEverythingAndLeavesNothing) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_);
    Start();
    reprise_window_begin(0);
    for (int i = 0; i < 100; ++i) cupti.Launch("kernel", 1, false);
    ASSERT_EQ(reprise_stop(), REPRISE_OK);

    EXPECT_EQ(cupti.enabled_kinds, 0u);
    EXPECT_EQ(cupti.unsubscribes, 1u);
    EXPECT_EQ(cupti.buffers_out, 0u);
    ASSERT_TRUE(collector.WaitForSession(
        [](const Session& session) { return !session.byes.empty(); }));
    EXPECT_EQ(collector.OnlySession().Count(REPRISE_RECORD_KERNEL), 100u);
    // A buffer that CUPTI delivers late finds no session.
    cupti.ReturnForeignBuffer();
  });
}

TEST_F(CuptiTroubleTest, AKilledJobLeavesTheKernelsThatCuptiHadDelivered) {
  Collector collector(socket_, shelf_, {.drain = false});
  const pid_t trainer = fork();
  if (trainer == 0) {
    LoadDriver();
    FakeCupti& cupti = Load(Layout::k130);
    Start(1u << 15);
    reprise_window_begin(REPRISE_KIND_KERNELS);
    for (int i = 0; i < 20000; ++i) cupti.Launch("kernel", 1, false);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(trainer, &status, 0), trainer);
  ASSERT_TRUE(WIFSIGNALED(status));
  collector.SetDrain(true);
  ASSERT_TRUE(collector.WaitForSession(
      [](const Session& session) { return session.closed == 1; }));
  // Buffers of 1 MiB hold 4,854 kernels: four of them were full.
  EXPECT_EQ(collector.OnlySession().Count(REPRISE_RECORD_KERNEL),
            4u * ((1u << 20) / 216));
}

TEST_F(CuptiTroubleTest, ASinkTakesKernelsToo) {
  In(Layout::k120, [&](FakeCupti& cupti) {
    const std::string path = folder_ + "/records";
    setenv("REPRISE_SINK", ("file:" + path).c_str(), 1);
    EXPECT_EQ(Start(1u << 16), REPRISE_DEGRADED);
    reprise_window_begin(REPRISE_KIND_KERNELS);
    for (int i = 0; i < 5000; ++i) cupti.Launch("kernel", 1, false);
    reprise_window_end();
    EXPECT_EQ(reprise_flush(10000), REPRISE_OK);
    reprise_stop();
    EXPECT_GT(std::filesystem::file_size(path), 5000u * 64);
  });
}

TEST_F(CuptiTroubleTest, AFullRingDropsKernelsAndSaysSo) {
  In(Layout::k130, [&](FakeCupti& cupti) {
    Collector collector(socket_, shelf_, {.drain = false});
    Start(4096);
    reprise_window_begin(REPRISE_KIND_KERNELS);
    for (int i = 0; i < 10000; ++i) cupti.Launch("kernel", 1, false);
    reprise_window_end();
    EXPECT_GT(Capabilities().dropped, 0u);
    collector.SetDrain(true);
    ASSERT_EQ(reprise_flush(10000), REPRISE_OK);
    reprise_step(1);
    ASSERT_EQ(reprise_flush(10000), REPRISE_OK);
    const Session session = collector.OnlySession();
    EXPECT_EQ(session.Count(REPRISE_RECORD_KERNEL) + session.Lost(), 10000u);
  });
}

}  // namespace
}  // namespace reprise::profiler::testing
