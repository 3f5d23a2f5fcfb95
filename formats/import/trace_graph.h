// SPDX-License-Identifier: Apache-2.0
//
// Builds a step graph from a profiler trace. A trace says which ops ran, for
// how long, and when memory was allocated and freed; it does not say which op
// read which tensor. So:
//
//   exact     ops, times, storages with their bytes, first and last op: the
//             graph's memory without a plan is the traced memory
//   inferred  for each of its input shapes, an op reads the newest live storage
//             of that size (in the backward, preferably one that the forward op
//             of the same autograd node had), and also the storages freed while
//             or after it ran, because autograd releases what was read last
//
// A plan of such a graph estimates what a budget costs. It cannot be applied to
// a job; that needs a captured graph.
//
// Storages that are alive when the step begins and die in it are written by a
// first op `reprise.step_begin`, which also has the time that belongs to no op.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/import/trace.h"
#include "reprise/v1/graph.pb.h"

namespace reprise::formats {

struct TraceGraph {
  v1::StepGraph graph;
  // Number of input shapes with one storage of that size to choose from, with
  // several, and with none (parameters and other earlier storages).
  uint64_t certain = 0;
  uint64_t guessed = 0;
  uint64_t unmatched = 0;
};

// O(n log n) in ops and events. INVALID_ARGUMENT: bytes or times do not fit a
// step graph.
StatusOr<TraceGraph> GraphOfTrace(const Trace& trace);

}  // namespace reprise::formats
