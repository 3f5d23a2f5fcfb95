// SPDX-License-Identifier: Apache-2.0
//
// Step graphs as text: the file format `reprise.graph/1` (docs/formats.md) and
// the proto3 JSON of StepGraph that agents submit.
//
// Reading is strict where a mistake would change the plan (ids, numbers,
// phases, kinds, missing keys) and ignores unknown keys. The text comes from
// files and sockets, so it is not trusted: it is read in one pass without a
// document tree, and uses memory only in proportion to the graph.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "reprise/v1/graph.pb.h"

namespace reprise::formats {

inline constexpr size_t kMaxGraphTextBytes = size_t{1} << 30;

// Reads either form: with a top-level "format" the text must be
// reprise.graph/1, without one it is proto3 JSON. The result passes ToPlanner.
//
// INVALID_ARGUMENT names the byte (not JSON) or the field (wrong content):
//   byte 4711: the JSON ends too early
//   ops[17].time_ns: must be an integer, got a string
StatusOr<v1::StepGraph> ReadGraphText(std::string_view text);

// Writes `reprise.graph/1`, one storage or op per line; ReadGraphText reads it
// back as an equal proto. The graph must be valid.
std::string WriteGraphText(const v1::StepGraph& graph);

}  // namespace reprise::formats
