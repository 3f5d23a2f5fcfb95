// SPDX-License-Identifier: Apache-2.0
//
// Converts step graphs between the proto and the planner's struct.
//
// A StepGraph proto comes from a socket, an RPC or a file and is not trusted:
// ids must equal positions, every reference must be in range, enums must be
// known, and the planner's own `Validate` must accept the result. Errors name
// the first wrong field as the proto does: `ops[17].reads[2]: ...`.
#pragma once

#include <string_view>

#include "base/status.h"
#include "planner/model/step_graph.h"
#include "reprise/v1/graph.pb.h"

namespace reprise::formats {

// The limit for the ops, and for the storages, of a graph.
inline constexpr int kMaxGraphItems = 4'000'000;

// Checks and converts a graph. INVALID_ARGUMENT, naming the field. An
// unspecified phase or kind is an error; an unspecified category becomes
// unknown.
StatusOr<planner::StepGraph> ToPlanner(const v1::StepGraph& proto);

// Returns the fields that the planner knows.
v1::StepGraph ToProto(const planner::StepGraph& graph);

// Parses a serialized StepGraph and checks it as ToPlanner does.
StatusOr<v1::StepGraph> ReadGraphBytes(std::string_view serialized);

}  // namespace reprise::formats
