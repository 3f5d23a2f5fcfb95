// SPDX-License-Identifier: Apache-2.0
//
// Adds what was measured on the device to the step graph that was captured at
// the same time.
//
//   time_ns          sum of the kernels of the op's `agent_ops`
//   workspace_bytes  what the op allocated beyond its outputs, if that is more
//                    than the job itself measured
//   launch_gap_ns    first to last kernel, less the time in which one ran
//   reprise.step_begin   the rest of the measured step, so that the times of
//                        the ops still add up to it
//
// Times are replaced either for all ops or for none: if an op of the graph, or
// a record since the first of them, is missing, or no kernel was seen, the
// host's times stay and `timing` says why. So they do if more than one op in
// twenty has kernels that cannot be its own: that begin before the op, or end
// long after all that could have been queued. Then the tracer's clock was
// wrong, and with it perhaps how long they took.
#pragma once

#include "reprise/v1/graph.pb.h"
#include "server/collect/op_join.h"

namespace reprise::server {

// O(ops + kernels log kernels).
void ApplyMeasurement(const OpMeasurement& measured, v1::StepGraph& graph);

}  // namespace reprise::server
