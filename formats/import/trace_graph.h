// SPDX-License-Identifier: Apache-2.0
//
// A step graph out of a profiler trace. A trace says which ops ran, for how
// long, and when what memory was taken and given back; it does not say which
// op read which tensor. So:
//
//   exact     ops, times, storages, their bytes, their first and last op: the
//             graph's memory without a plan is the traced memory
//   inferred  an op reads, for each of its input shapes, the newest storage
//             alive of that size (in the backward: first what the forward op of
//             the same autograd node had), and what is given back while or
//             after it ran, as autograd lets go of what was read last
//
// A plan of such a graph is an estimate of what a budget costs. It cannot be
// applied to a job: only a captured graph can.
//
// What is alive when the step begins and dies in it is written by a first op
// `reprise.step_begin`, which also has the time that no op accounts for.
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
  // Input shapes: with one storage of that size to choose from, with several,
  // and with none (parameters and what else was there before).
  uint64_t certain = 0;
  uint64_t guessed = 0;
  uint64_t unmatched = 0;
};

// O(n log n) in ops and events. INVALID_ARGUMENT: bytes or times that do not
// fit a step graph.
StatusOr<TraceGraph> GraphOfTrace(const Trace& trace);

}  // namespace reprise::formats
