// SPDX-License-Identifier: Apache-2.0
//
// Determines which reader a JSON file needs from its first top-level keys. A
// trace may be larger than memory, so the file is not parsed for this.
#pragma once

#include "formats/import/byte_source.h"

namespace reprise::formats {

enum class JsonKind { kTrace, kGraph, kPlan };

// Reads at most 1 MiB of `source`. An unrecognised file is treated as a trace,
// whose reader then says what is missing.
JsonKind KindOfJson(ByteSource& source);

}  // namespace reprise::formats
