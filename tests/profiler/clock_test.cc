// The machine's clock is set while a job runs: records must stay on the
// monotonic clock, and clock records must show the change.
#include <sys/syscall.h>
#include <time.h>

#include <atomic>
#include <chrono>

#include "tests/profiler/cupti_test.h"

namespace {
std::atomic<int64_t> g_set_by_seconds{0};
}

// Replaces libc's function, also for the agent: setting the real clock needs
// root and would affect every process of the machine.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += g_set_by_seconds;
  return result;
}

namespace reprise::profiler::testing {
namespace {

class ClockTest : public CuptiTest {
 protected:
  ~ClockTest() override { g_set_by_seconds = 0; }

  // Runs steps until the session has `count` clock records: one is made each
  // second.
  static std::vector<reprise_slot> Clocks(Collector& collector, size_t count) {
    std::vector<reprise_slot> found;
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::seconds(30);
    uint64_t step = 0;
    while (found.size() < count && std::chrono::steady_clock::now() < until) {
      reprise_step(++step);
      reprise_flush(1000);
      usleep(20000);
      found = Of(collector.OnlySession(), REPRISE_RECORD_CLOCK);
    }
    return found;
  }
};

TEST_F(ClockTest, AStepOfTheRealtimeClockMovesNoRecord) {
  Collector collector(socket_, shelf_);
  Start();
  Clocks(collector, 1);
  g_set_by_seconds = 3600;
  Clocks(collector, 2);
  g_set_by_seconds = -7200;
  const std::vector<reprise_slot> clocks = Clocks(collector, 3);

  ASSERT_GE(clocks.size(), 3u);
  const auto offset = [](const reprise_slot& clock) {
    return static_cast<double>(clock.body.clock.realtime - clock.ts_ns) / 1e9;
  };
  EXPECT_NEAR(offset(clocks[1]) - offset(clocks[0]), 3600, 5);
  EXPECT_NEAR(offset(clocks[2]) - offset(clocks[1]), -10800, 5);
  uint64_t before = 0;
  for (const reprise_slot& record : collector.OnlySession().records) {
    EXPECT_GE(record.ts_ns, before);
    EXPECT_LE(record.ts_ns, Monotonic());
    before = record.ts_ns;
  }
  EXPECT_EQ(collector.OnlySession().hellos, 1);
}

TEST_F(ClockTest, KernelsStayWhereTheyWereWhenCuptiKeepsItsOwnClock) {
  In(Layout::k120, [&](FakeCupti& cupti) {
    cupti.no_clock = true;
    Collector collector(socket_, shelf_);
    Start();
    g_set_by_seconds = 3600;  // since the start of the session
    const uint64_t before = Monotonic();
    reprise_window_begin(REPRISE_KIND_KERNELS);
    cupti.Launch("kernel", 1000, false);
    reprise_window_end();
    reprise_flush(10000);

    const auto kernels = Of(collector.OnlySession(), REPRISE_RECORD_KERNEL);
    ASSERT_EQ(kernels.size(), 1u);
    EXPECT_EQ(kernels[0].clock_id, REPRISE_CLOCK_MONOTONIC);
    // Between reading the two clocks some time passes.
    EXPECT_GE(kernels[0].ts_ns + 1'000'000, before);
    EXPECT_LE(kernels[0].ts_ns, Monotonic() + 1'000'000);
  });
}

}  // namespace
}  // namespace reprise::profiler::testing
