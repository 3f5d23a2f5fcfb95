// SPDX-License-Identifier: Apache-2.0
//
// The reader behind ReadGraphText for `reprise.graph/1`: turns events of a JSON
// parser into a StepGraph. Its position is a stack of places (root, list of
// ops, one op, list of ids, ...); the meaning of a key depends on the place.
#pragma once

#include <string_view>

#include "base/status.h"
#include "reprise/v1/graph.pb.h"

namespace reprise::formats {

// The text must have passed ScanJson. Checks types, ranges of numbers, names of
// enums and missing keys, but not whether the graph is valid.
StatusOr<v1::StepGraph> ReadGraphFile(std::string_view text);

}  // namespace reprise::formats
