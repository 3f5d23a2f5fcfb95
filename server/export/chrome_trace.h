// SPDX-License-Identifier: Apache-2.0
//
// Timelines as Chrome trace JSON, which chrome://tracing and Perfetto open: one
// process per timeline, its ops as slices, its memory as a counter. Times are
// microseconds since the step's begin: absolute nanoseconds would not fit a
// double.
#pragma once

#include <string>
#include <vector>

#include "server/export/timeline.h"

namespace reprise::server {

std::string WriteChromeTrace(const std::string& name,
                             const std::vector<ExportTimeline>& timelines);

}  // namespace reprise::server
