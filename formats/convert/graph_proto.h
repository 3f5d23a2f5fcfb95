// SPDX-License-Identifier: Apache-2.0
//
// Step graphs between the wire and the planner.
//
// A StepGraph proto comes from a socket, an RPC or a file and is hostile: ids
// must equal positions, every reference must be in range, enums must be known,
// and the planner's own `Validate` must accept the result. The first thing
// that is wrong is named as in the proto: `ops[17].reads[2]: ...`.
#pragma once

#include <string_view>

#include "base/status.h"
#include "planner/model/step_graph.h"
#include "reprise/v1/graph.pb.h"

namespace reprise::formats {

// Most ops, and most storages, of a graph that is accepted.
inline constexpr int kMaxGraphItems = 4'000'000;

// INVALID_ARGUMENT, naming the field. An unspecified phase or kind is refused;
// an unspecified category becomes unknown.
StatusOr<planner::StepGraph> ToPlanner(const v1::StepGraph& proto);

// The fields the planner knows.
v1::StepGraph ToProto(const planner::StepGraph& graph);

// Parses a serialized StepGraph and checks it as ToPlanner does.
StatusOr<v1::StepGraph> ReadGraphBytes(std::string_view serialized);

}  // namespace reprise::formats
