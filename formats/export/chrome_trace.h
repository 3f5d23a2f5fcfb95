// SPDX-License-Identifier: Apache-2.0
//
// Timelines as Chrome trace JSON, which chrome://tracing and Perfetto open: one
// process per timeline, its ops as slices, its memory as a counter. Times are
// microseconds since the step's begin, because absolute nanoseconds would not
// fit into a double.
//
// Steps, ops and allocations also have the names that torch.profiler uses
// ("ProfilerStep#1", "cpu_op", "[memory]"), with the memory of timeline i as
// that of device i, so that `reprise import` and tools for torch.profiler's
// traces can read them. If neither "cpu_op" nor "kernel" says what an op is,
// "Part" does (forward, ...).
#pragma once

#include <string>
#include <vector>

#include "formats/export/timeline.h"

namespace reprise::formats {

std::string WriteChromeTrace(const std::string& name,
                             const std::vector<ExportTimeline>& timelines);

}  // namespace reprise::formats
