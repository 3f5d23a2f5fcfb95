// SPDX-License-Identifier: Apache-2.0
//
// What an executor can do, as text, as proto and as the planner sees it.
//
// An agent announces its executors in order of preference, comma-separated;
// each is a name and the keys that differ from its preset:
//
//   tape:seeded_ok=1:ns_per_op=9000,graph
//
//   preset   execution  backward only  seeded  collective  duplicates  frees
//   tape     free       yes            no      no          yes         program
//   graph    free       no             yes     no          yes         eager
//   joint    once       yes            no      no          no          eager
//   region   nested     yes            no      no          yes         program
//   free     free       no             no      no          no          eager
//   once     once       yes            no      no          no          eager
//   nested   nested     yes            no      no          no          eager
//
// `region` runs regions that do not nest; region:max_runs=0 lets them.
//
// `free`, `once` and `nested` are no executors but what there is for each kind
// under the reference semantics: the schedules of the file format.
// Presets and keys say what the executor *can* do; the planner obeys all.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/model/evaluate.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::formats {

// The first executor in the text that has a preset, with its keys. Empty text
// is `free`. INVALID_ARGUMENT: no known executor in it, or a key or a value of
// the chosen one cannot be read.
StatusOr<v1::Capabilities> ParseCapabilities(std::string_view text);

// "tape, graph, ..., once and nested": the presets, for error messages.
std::string KnownExecutors();

// INVALID_ARGUMENT: a number is negative or too large. An unspecified free
// policy is the one of the executor's preset.
StatusOr<planner::Capabilities> ToPlanner(const v1::Capabilities& proto);

}  // namespace reprise::formats
