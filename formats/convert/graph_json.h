// SPDX-License-Identifier: Apache-2.0
//
// Step graphs as text: the file format `reprise.graph/1` (docs/formats.md) and
// the proto3 JSON of StepGraph that agents submit.
//
// Reading is strict where a mistake would change the plan (ids, numbers,
// phases, kinds, missing keys) and ignores unknown keys. The text comes from
// files and sockets, so it is not trusted: of its storages, ops and tensors one
// at a time is held as a document, and memory is in proportion to the graph.
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
//   ops[17].time_ns: missing
StatusOr<v1::StepGraph> ReadGraphText(std::string_view text);

// Writes `reprise.graph/1`, one storage or op per line; ReadGraphText reads it
// back as an equal proto. The graph must be valid.
std::string WriteGraphText(const v1::StepGraph& graph);

// The reader behind ReadGraphText for `reprise.graph/1`.
//
// The text must have passed ScanJson. Checks types, ranges of numbers, names of
// enums and missing keys, but not whether the graph is valid.
StatusOr<v1::StepGraph> ReadGraphFile(std::string_view text);

// Scans a JSON text from outside: is it valid JSON, is its depth reasonable,
// and what kind of file is it? Uses constant memory, so that a hostile file is
// rejected before anything is built from it.

// The deepest nesting that is accepted; Reprise's own files need 4.
inline constexpr int kMaxJsonDepth = 64;

struct JsonScan {
  // Value of the top-level key "format"; empty if absent.
  std::string format;
  bool has_format = false;
  bool has_schedule = false;  // a top-level key of a plan
  bool has_ops = false;       // a top-level key of a step graph
};

// INVALID_ARGUMENT: `byte 17: ...` for text that is not one JSON object, is
// truncated, or nests deeper than kMaxJsonDepth.
StatusOr<JsonScan> ScanJson(std::string_view text);

}  // namespace reprise::formats
