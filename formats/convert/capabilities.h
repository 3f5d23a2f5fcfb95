// SPDX-License-Identifier: Apache-2.0
//
// What an executor can do: as text, as proto, and as the planner's struct.
//
// An agent announces its executors in order of preference, separated by commas;
// each is a name and the keys that differ from its preset:
//
//   tape:seeded_ok=1:ns_per_op=9000,graph
//
//   preset   execution  backward only  seeded  collective  duplicates  frees
//   tape     free       yes            no      no          yes         program
//   graph    free       no             yes     no          yes         eager
//   joint    once       yes            no      no          no          eager
//   free     free       no             no      no          no          eager
//   once     once       yes            no      no          no          eager
//
// Of a link to host memory: out_bytes_per_s, in_bytes_per_s, latency_ns and
// host_bytes.
//
// `free` and `once` are not executors: they are the reference semantics of each
// kind of schedule in the file format. Presets and keys say what the executor
// *can* do; the planner obeys all of them.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/model/evaluate.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::formats {

// Parses the first executor in the text that has a preset, with its keys. Empty
// text means `free`. INVALID_ARGUMENT: no executor is known, or a key or value
// of the chosen one is not.
StatusOr<v1::Capabilities> ParseCapabilities(std::string_view text);

// Returns by which capabilities a stored plan is walked. The executors `nested`
// and `region` are gone, but their schedules are like those of others.
v1::Capabilities WalkedAs(v1::Capabilities stored);

// Returns the presets for error messages: "tape, graph, ..., free and once".
std::string KnownExecutors();

// Returns a link to host memory, of an executor or a plan; no host bytes: none.
planner::Link LinkOf(const v1::Link& link);

// INVALID_ARGUMENT: a number is negative or too large, or the executor is gone. An unspecified free
// policy means that of the executor's preset.
StatusOr<planner::Capabilities> ToPlanner(const v1::Capabilities& proto);

}  // namespace reprise::formats
