// SPDX-License-Identifier: Apache-2.0
//
// Small random step graphs with every feature: several outputs, in-place
// versions, workspace, zero times, zero bytes, every op kind, releases, pinned
// and required storages, generator states, a forward and a backward.
#pragma once

#include "planner/model/evaluate.h"
#include "planner/model/random.h"

namespace reprise::planner {

// At most `most_ops` ops (at least 3) and 12 storages; always valid.
StepGraph RandomGraph(Random& random, int most_ops);

// Makes some ops, at random, no replay points.
void LimitReplayPoints(StepGraph& graph, Random& random);

// Gives some ops, at random, windows outside which they do not run again.
void LimitReplays(StepGraph& graph, Random& random);

// The reference capabilities, the tape's, and others.
Capabilities RandomCapabilities(Random& random);
Capabilities TapeCapabilities();

}  // namespace reprise::planner
