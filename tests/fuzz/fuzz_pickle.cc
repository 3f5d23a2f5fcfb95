// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "formats/import/snapshot.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace reprise::formats;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  // Small limits, so that a pickle bomb exceeds them within the fuzzer's own
  // memory.
  const PickleLimits limits{.held_bytes = 4 << 20, .text_bytes = 1 << 20};
  const int64_t held = PickleNode::held_bytes;
  {
    ByteSource source = ByteSource::Over(bytes);
    const auto value = ReadPickle(source, {}, limits);
    REPRISE_FUZZ_CHECK(value.ok() || !value.status().message().empty());
  }
  const auto snapshot = Snapshot::Open(
      [&]() -> reprise::StatusOr<ByteSource> {
        return ByteSource::Over(bytes);
      },
      "fuzz", std::nullopt, limits);
  if (snapshot.ok()) {
    const MemorySummary& summary = snapshot->summary();
    RecordingNames names;
    uint64_t events = 0;
    int64_t live = summary.baseline_bytes;
    int64_t peak = live;
    const auto status = snapshot->Replay(names, [&](const MemoryEvent& event) {
      ++events;
      live += event.bytes;
      REPRISE_FUZZ_CHECK(live >= 0);
      REPRISE_FUZZ_CHECK(event.name <= names.texts().size());
      peak = std::max(peak, live);
      return reprise::OkStatus();
    });
    // The second reading must bring what the first one counted.
    REPRISE_FUZZ_CHECK(status.ok());
    REPRISE_FUZZ_CHECK(events == summary.events);
    REPRISE_FUZZ_CHECK(peak == summary.peak_bytes);
  }
  REPRISE_FUZZ_CHECK(PickleNode::held_bytes == held);
  return 0;
}
