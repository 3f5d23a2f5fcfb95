// Measures what the agent costs the calling thread: nanoseconds per call,
// median over batches. A test collector drains the ring meanwhile, so these are
// the costs of a job that is being watched. Prints the figures and checks
// nothing.
//
//   agent_bench [--json]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "profiler/include/reprise_agent.h"
#include "tests/profiler/collector.h"

namespace {

using reprise::profiler::testing::Collector;
using reprise::profiler::testing::Shelf;

constexpr int kBatches = 400;
constexpr int kCallsPerBatch = 500;

int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

struct Figure {
  double median_ns = 0, p95_ns = 0;
};

// Returns the time per call. The reader catches up between batches: a full ring
// would measure drops.
template <typename Call>
Figure Measure(const Call& call) {
  std::vector<double> per_call;
  for (int batch = 0; batch < kBatches; ++batch) {
    const int64_t begin = NowNs();
    for (int i = 0; i < kCallsPerBatch; ++i) call(static_cast<uint64_t>(i));
    per_call.push_back(static_cast<double>(NowNs() - begin) / kCallsPerBatch);
    reprise_flush(1000);
  }
  std::sort(per_call.begin(), per_call.end());
  return {per_call[kBatches / 2], per_call[kBatches * 95 / 100]};
}

// The same while `others` threads push as fast as they can.
template <typename Call>
Figure MeasureAmong(int others, const Call& call) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < others; ++t)
    threads.emplace_back([&] {
      while (!stop) reprise_alloc(1, 1, 0, 0, REPRISE_ALLOC, 1);
    });
  const Figure figure = Measure(call);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  return figure;
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::string(argv[1]) == "--json";
  const auto push = [](uint64_t i) {
    reprise_alloc(i, 1, 0, 0, REPRISE_ALLOC, /*ts=*/1);
  };
  const auto push_now = [](uint64_t i) {
    reprise_alloc(i, 1, 0, 0, REPRISE_ALLOC, 0);
  };
  const uint32_t name = reprise_intern("aten::relu", 10);
  const auto pair = [name](uint64_t i) {
    reprise_op_begin(i, name, 0, 0, 0, 0);
    reprise_op_end(i);
  };
  std::vector<std::pair<const char*, Figure>> rows;
  rows.emplace_back("op begin/end pair, inert", Measure(pair));

  const std::string socket =
      "/tmp/reprise-bench-" + std::to_string(getpid()) + ".sock";
  Collector::Options options;
  options.keep_records = false;
  Collector collector(socket, std::make_shared<Shelf>(), options);
  reprise_config config = {};
  config.struct_size = sizeof config;
  config.socket_path = socket.c_str();
  if (reprise_start(&config) < REPRISE_OK) return 1;

  rows.emplace_back("push, time given", Measure(push));
  rows.emplace_back("push, time read", Measure(push_now));
  rows.emplace_back("op begin/end pair", Measure(pair));
  rows.emplace_back("step", Measure(reprise_step));
  rows.emplace_back("push among 2 writers", MeasureAmong(1, push));
  rows.emplace_back("push among 4 writers", MeasureAmong(3, push));
  reprise_caps caps = {};
  caps.struct_size = sizeof caps;
  reprise_capabilities(&caps);
  reprise_stop();

  if (json) std::printf("{");
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& [what, figure] = rows[i];
    if (json)
      std::printf("%s\"%s\":{\"p50_ns\":%.1f,\"p95_ns\":%.1f}",
                  i == 0 ? "" : ",", what, figure.median_ns, figure.p95_ns);
    else
      std::printf("%-26s p50 %8.1f ns   p95 %8.1f ns\n", what, figure.median_ns,
                  figure.p95_ns);
  }
  if (json)
    std::printf("}\n");
  else
    std::printf("%llu records, %llu dropped\n",
                static_cast<unsigned long long>(caps.pushed),
                static_cast<unsigned long long>(caps.dropped));
  return 0;
}
