// SPDX-License-Identifier: Apache-2.0
//
// Chrome trace JSON as torch.profiler writes it (export_chrome_trace), read as
// a stream: one event at a time, whatever the file's size.
//
//   {"traceEvents": [{ph, cat, name, tid, ts, dur, args: {...}}, ...], ...}
//
// Text from files is hostile: depth and the length of texts are limited, an
// error names its byte. O(bytes) time, O(one event) memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/import/byte_source.h"

namespace reprise::formats {

// What is read of an event; numbers that were not there are 0, ids -1.
struct TraceEvent {
  std::string phase;     // "X", "i", ...
  std::string category;  // "cpu_op", "kernel", ...
  std::string name;
  std::string process;  // number or text
  std::string thread;
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  int64_t external_id = -1;
  int64_t sequence = -1;
  int64_t forward_thread = 0;
  // Of "[memory]".
  int64_t bytes = 0;
  uint64_t address = 0;
  int64_t device_type = 0;  // 0 CPU, 1 CUDA
  int64_t device_id = -1;
  int64_t total_allocated = -1;
  int64_t total_reserved = 0;
  std::string part;  // of the step: "forward", ..., as our own export says
  // One per tensor that the op was given: bytes, by shape and type.
  std::vector<int64_t> input_bytes;
};

using TakeTraceEvent = std::function<Status(const TraceEvent&)>;

// INVALID_ARGUMENT `byte 17: ...`; RESOURCE_EXHAUSTED beyond a limit; the
// status of `take`, which ends the reading.
Status ReadTraceJson(ByteSource& source, const TakeTraceEvent& take);

}  // namespace reprise::formats
