// SPDX-License-Identifier: Apache-2.0
//
// Timelines as Chrome trace JSON, which chrome://tracing and Perfetto open: one
// process per timeline, its ops as slices, its memory as a counter. Times are
// microseconds since the step's begin: absolute nanoseconds would not fit a
// double.
//
// Steps, ops and allocations are also written as torch.profiler names them
// ("ProfilerStep#1", "cpu_op", "[memory]"), the memory of timeline i as that of
// device i: `reprise import` and tools for its traces read them back. Where
// neither "cpu_op" nor "kernel" says what an op is, "Part" does (forward, ...).
#pragma once

#include <string>
#include <vector>

#include "formats/export/timeline.h"

namespace reprise::formats {

std::string WriteChromeTrace(const std::string& name,
                             const std::vector<ExportTimeline>& timelines);

}  // namespace reprise::formats
