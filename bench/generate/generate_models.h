// SPDX-License-Identifier: Apache-2.0
//
// The networks of `generate.h`, each built from its number of units (at least
// 1).
#pragma once

#include "bench/generate/network.h"

namespace reprise::planner {

// ---- generate_attention.cc ----

// Pre-norm decoder: batch 4, 1024 tokens, width 1024, 16 heads, a vocabulary of
// 32k. Attention scores are stored and go through dropout, as before fused
// attention.
StepGraph TransformerGraph(const Network::Options& options, int units);

// Decoder with fused attention; each token is sent to 2 of the experts, 4 of
// which are on this device: batch 4, 2048 tokens, width 1024.
StepGraph MoeGraph(const Network::Options& options, int units);

// ---- generate_images.cc ----

// Bottleneck blocks in four stages in the proportions of ResNet-50 (3:4:6:3),
// batch 32, 224 x 224.
StepGraph ResNetGraph(const Network::Options& options, int units);

// Encoder and decoder with skip connections, batch 2, 512 x 512, width 64 at
// the top. The first four units are the levels; further ones deepen the levels
// in turn.
StepGraph UNetGraph(const Network::Options& options, int units);

// U-Net of residual blocks with group norm, the embedding of the time step and,
// except at the top level, attention: batch 8, 64 x 64 latents, width 320.
StepGraph DiffusionUNetGraph(const Network::Options& options, int units);

// ---- generate_layered.cc ----

// Layers of 6 to 14 ops that read 1 to 4 outputs, mostly of the previous layer;
// times and bytes vary by a factor of 1000.
StepGraph LayeredGraph(const Network::Options& options, int units);

}  // namespace reprise::planner
