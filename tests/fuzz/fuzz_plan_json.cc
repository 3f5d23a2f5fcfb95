// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "formats/convert/plan_json.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace reprise::formats;
  const auto plan =
      ReadPlanText(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!plan.ok()) {
    REPRISE_FUZZ_CHECK(!plan.status().message().empty());
    return 0;
  }
  const std::string written = WritePlanText(plan->plan, plan->graph);
  const auto again = ReadPlanText(written);
  REPRISE_FUZZ_CHECK(again.ok());
  REPRISE_FUZZ_CHECK(WritePlanText(again->plan, again->graph) == written);
  return 0;
}
