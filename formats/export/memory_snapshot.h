// SPDX-License-Identifier: Apache-2.0
//
// A timeline as a PyTorch memory snapshot, which pytorch.org/memory_viz and
// formats/import/snapshot.h can read. It is a pickle of plain data with
// protocol 4, the newest that all viewers read.
//
// Static memory is a single block, allocated before the first event and never
// freed.
#pragma once

#include <string>

#include "formats/export/timeline.h"

namespace reprise::formats {

std::string WriteMemorySnapshot(const ExportTimeline& timeline);

}  // namespace reprise::formats
