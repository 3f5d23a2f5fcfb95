// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace reprise::formats;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto graph = ReadGraphText(text);
  // Graphs from sockets are binary protos: read the same bytes as one.
  (void)ReadGraphBytes(text);
  if (!graph.ok()) {
    REPRISE_FUZZ_CHECK(!graph.status().message().empty());
    return 0;
  }
  const auto planner_graph = ToPlanner(*graph);
  REPRISE_FUZZ_CHECK(planner_graph.ok());
  REPRISE_FUZZ_CHECK(reprise::planner::Validate(*planner_graph).ok());
  const std::string written = WriteGraphText(*graph);
  const auto again = ReadGraphText(written);
  REPRISE_FUZZ_CHECK(again.ok());
  REPRISE_FUZZ_CHECK(WriteGraphText(*again) == written);
  return 0;
}
