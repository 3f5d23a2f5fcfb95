// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "formats/convert/graph_proto.h"
#include "formats/import/trace.h"
#include "planner/model/evaluate.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace reprise::formats;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto trace = Trace::Open(
      [&]() -> reprise::StatusOr<ByteSource> { return ByteSource::Over(text); },
      "fuzz", std::nullopt, std::nullopt);
  if (!trace.ok()) {
    REPRISE_FUZZ_CHECK(!trace.status().message().empty());
    return 0;
  }
  RecordingNames names;
  int64_t live = trace->summary().baseline_bytes;
  const auto replayed = trace->Replay(names, [&](const MemoryEvent& event) {
    live += event.bytes;
    REPRISE_FUZZ_CHECK(live >= 0);
    return reprise::OkStatus();
  });
  REPRISE_FUZZ_CHECK(replayed.ok());
  const auto made = GraphOfTrace(*trace);
  if (!made.ok()) return 0;
  const auto graph = ToPlanner(made->graph);
  if (!graph.ok()) return 0;  // sums above 2^62
  const auto walked = reprise::planner::Evaluate(
      *graph,
      reprise::planner::BaseSchedule(*graph,
                                     reprise::planner::FreePolicy::kEager),
      {});
  REPRISE_FUZZ_CHECK(walked.ok());
  return 0;
}
