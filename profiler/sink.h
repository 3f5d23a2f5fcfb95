// Writes a session to a file (format: include/reprise_sink.h). The agent is
// then the ring's reader itself: it spills records from reprise_step, from
// reprise_flush, and from a push that finds the ring more than half full.
//
// After a failed write (disk full) the file is truncated to its last complete
// entry, and the write is retried a second later. Meanwhile the ring fills up,
// and dropped records are counted.
#pragma once

#include <stdint.h>

#include "profiler/agent.h"

namespace reprise::profiler {

// Opens "file:PATH" and writes HELLO and CAPS. Returns null, or the error as a
// sentence in `why`.
const char *OpenSink(Agent *agent, const char *sink_path, char *why,
                     size_t why_bytes);

// Writes new names, then at most `max_records` published records.
void SpillSink(Agent *agent, uint64_t max_records, uint64_t now_ns);

// Writes one entry from at most three parts. Returns false if it failed.
bool WriteSinkEntry(Agent *agent, uint16_t type, const BodyPart *parts,
                    int count);

constexpr uint64_t kSpillAll = UINT64_MAX;
// Limits a push that spills to about 100 us.
constexpr uint64_t kSpillFromPush = 4096;

}  // namespace reprise::profiler
