// SPDX-License-Identifier: Apache-2.0
//
// Reads Chrome trace JSON as torch.profiler writes it (export_chrome_trace), as
// a stream: one event at a time, whatever the file's size.
//
//   {"traceEvents": [{ph, cat, name, tid, ts, dur, args: {...}}, ...], ...}
//
// The text is not trusted: depth and the length of texts are limited, and
// errors name the byte. O(bytes) time, O(one event) memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/import/byte_source.h"

namespace reprise::formats {

// The fields of an event that are read; absent numbers are 0, absent ids -1.
struct TraceEvent {
  std::string phase;     // "X", "i", ...
  std::string category;  // "cpu_op", "kernel", ...
  std::string name;
  std::string process;  // number or text
  std::string thread;
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  // Its start or its duration cannot be, such as one of 236 years.
  bool has_wrong_time = false;
  int64_t external_id = -1;
  int64_t sequence = -1;
  int64_t forward_thread = 0;
  // For "[memory]" events.
  int64_t bytes = 0;
  uint64_t address = 0;
  int64_t device_type = 0;  // 0 CPU, 1 CUDA
  int64_t device_id = -1;
  int64_t total_allocated = -1;
  int64_t total_reserved = 0;
  std::string part;  // of the step: "forward", ..., in our own exports
  // Bytes of each tensor argument of the op, from its shape and type.
  std::vector<int64_t> input_bytes;
};

using TakeTraceEvent = std::function<Status(const TraceEvent&)>;

// Passes every event to `take`. INVALID_ARGUMENT `byte 17: ...`;
// RESOURCE_EXHAUSTED beyond a limit; or an error of `take`, which ends the
// reading.
Status ReadTraceJson(ByteSource& source, const TakeTraceEvent& take);

}  // namespace reprise::formats
