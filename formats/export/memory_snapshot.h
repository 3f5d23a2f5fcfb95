// SPDX-License-Identifier: Apache-2.0
//
// A timeline as a PyTorch memory snapshot: what pytorch.org/memory_viz opens,
// and formats/import/snapshot.h reads. A pickle of plain data of protocol 4, the
// newest that every viewer reads.
//
// What is alive all the time is one block of its own, there from before the
// first event to the end.
#pragma once

#include <string>

#include "formats/export/timeline.h"

namespace reprise::formats {

std::string WriteMemorySnapshot(const ExportTimeline& timeline);

}  // namespace reprise::formats
