// SPDX-License-Identifier: Apache-2.0
//
// What the device was seen to do, put into the step graph that was captured
// meanwhile.
//
//   time_ns          sum of the kernels of the op's `agent_ops`
//   workspace_bytes  what they took from the allocator above their outputs,
//                    where that is more than the job itself has measured
//   launch_gap_ns    first to last kernel, less the time in which one ran
//   reprise.step_begin   what is left of the measured step, so that the times
//                        of the ops still sum to it
//
// Times are replaced all together or not at all: where an op of the graph or a
// record since the first of them is missing, or no kernel was seen, the host's
// stay and `timing` says why.
#pragma once

#include "reprise/v1/graph.pb.h"
#include "server/collect/op_join.h"

namespace reprise::server {

// O(ops + kernels log kernels).
void ApplyMeasurement(const OpMeasurement& measured, v1::StepGraph& graph);

}  // namespace reprise::server
