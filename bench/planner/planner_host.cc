// SPDX-License-Identifier: Apache-2.0
//
// planner_host [GB/S]: what host memory gains on 32 layers of a 7B model, by
// tokens and share of the activations: recomputation alone, both, and the bound,
// as parts of the step. At the default effort, so it repeats.
#include <cstdio>
#include <cstdlib>

#include "planner/planner.h"
#include "tests/planner/layers.h"

using namespace reprise::planner;

int main(int argc, char** argv) {
  const double gb_per_s = argc > 1 ? std::atof(argv[1]) : 52;
  const auto bytes_per_s = static_cast<int64_t>(gb_per_s * 1e9);
  std::printf(
      "%.0f GB/s each way\ntokens  share  recompute   both  bound  "
      "host GiB\n",
      gb_per_s);
  for (const int64_t tokens : {4096, 8192, 16384, 32768}) {
    const StepGraph graph = Layers(32, tokens);
    int64_t bytes = 0;
    for (const Storage& storage : graph.storages) bytes += storage.bytes;
    for (const int percent : {50, 30, 20, 10}) {
      Request request;
      request.budget_bytes = bytes / 100 * percent;
      const auto alone = MakePlan(graph, request);
      request.capabilities.link = {.out_bytes_per_s = bytes_per_s,
                                   .in_bytes_per_s = bytes_per_s,
                                   .latency_ns = 10'000,
                                   .host_bytes = int64_t{1} << 40};
      const auto both = MakePlan(graph, request);
      if (!alone.ok() || !both.ok()) return 1;
      std::printf(
          "%6lld  %4d%%    %6.2f%% %5.2f%% %5.2f%%  %8.1f\n",
          static_cast<long long>(tokens), percent, 100 * alone->overhead,
          100 * both->overhead, 100 * both->bound,
          static_cast<double>(both->evaluation.host_peak_bytes) / (1 << 30));
      std::fflush(stdout);
    }
  }
  return 0;
}
