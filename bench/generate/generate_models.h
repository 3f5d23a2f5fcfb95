// SPDX-License-Identifier: Apache-2.0
//
// The networks of `generate.h`, each by its number of units (at least 1).
#pragma once

#include "bench/generate/network.h"

namespace reprise::planner {

// ---- generate_attention.cc ----

// Pre-norm decoder: batch 4, 1024 tokens, width 1024, 16 heads, 32k words;
// scores are materialised and dropped out, as before fused attention.
StepGraph TransformerGraph(const Network::Options& options, int units);

// Decoder with fused attention; each token goes to 2 of the experts, of which
// 4 live here: batch 4, 2048 tokens, width 1024.
StepGraph MoeGraph(const Network::Options& options, int units);

// ---- generate_images.cc ----

// Bottleneck blocks in four stages in the proportions of ResNet-50 (3:4:6:3),
// batch 32, 224 x 224.
StepGraph ResNetGraph(const Network::Options& options, int units);

// Encoder and decoder with skips, batch 2, 512 x 512, width 64 at the top.
// The first four units are levels, further ones deepen the levels in turn.
StepGraph UNetGraph(const Network::Options& options, int units);

// U-Net of residual blocks with group norm, the time step's embedding and,
// but for the top level, attention: batch 8, 64 x 64 latents, width 320.
StepGraph DiffusionUNetGraph(const Network::Options& options, int units);

// ---- generate_layered.cc ----

// Layers of 6 to 14 ops that read 1 to 4 outputs, mostly of the layer before;
// times and bytes vary by a factor of 1000.
StepGraph LayeredGraph(const Network::Options& options, int units);

}  // namespace reprise::planner
