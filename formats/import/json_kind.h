// SPDX-License-Identifier: Apache-2.0
//
// Which of our readers a JSON file is for, from its first top-level keys: a
// trace may be larger than memory, so it is not parsed to find out.
#pragma once

#include "formats/import/byte_source.h"

namespace reprise::formats {

enum class JsonKind { kTrace, kGraph, kPlan };

// Reads at most 1 MiB of `source`. A file that does not say is taken for a
// trace, whose reader then says what is missing.
JsonKind KindOfJson(ByteSource& source);

}  // namespace reprise::formats
