// Writes a session into a file (format: include/reprise_sink.h). The agent is
// then the ring's reader itself: it spills from reprise_step, reprise_flush
// and from a push that finds the ring more than half full.
//
// A write that fails (disk full) is cut back to the last complete entry and
// tried again a second later; meanwhile the ring fills and drops are counted.
#pragma once

#include <stdint.h>

#include "profiler/agent.h"

namespace reprise::profiler {

// Opens "file:PATH" and writes HELLO and CAPS. Returns nullptr or a sentence.
const char *OpenSink(Agent *agent, const char *sink_path, char *why,
                     size_t why_bytes);

// Writes new names, then up to `max_records` published records.
void SpillSink(Agent *agent, uint64_t max_records, uint64_t now_ns);

// One entry from up to three parts.
bool WriteSinkEntry(Agent *agent, uint16_t type, const BodyPart *parts,
                    int count);

constexpr uint64_t kSpillAll = UINT64_MAX;
// Bounds a push that spills to some 100 us.
constexpr uint64_t kSpillFromPush = 4096;

}  // namespace reprise::profiler
