// SPDX-License-Identifier: Apache-2.0
//
// The activations of equal transformer layers, forward and backward, as on a
// GPU with 620 TFLOP/s for products, 450 for attention and 2.6 TB/s elsewhere:
// width 4096, SwiGLU of 11008, 16 bits. What gradients take is left out.
#pragma once

#include <string>
#include <vector>

#include "planner/model/step_graph.h"

namespace reprise::planner {

inline StepGraph Layers(int layers, int64_t tokens) {
  constexpr double kWidth = 4096, kHidden = 11008;
  const auto n = static_cast<double>(tokens);
  const auto product = [n](double flops) { return flops * n / 620e12 * 1e9; };
  const auto moves = [n](double bytes) { return bytes * n / 2.6e12 * 1e9; };
  const double h = kWidth, f = kHidden;
  const double attention = 2 * n * h * n / 450e12 * 1e9;
  StepGraph graph;
  const auto storage = [&](double width) {
    graph.storages.push_back({.bytes = static_cast<int64_t>(2 * width * n),
                              .saved_for_backward = true});
    return graph.storage_count() - 1;
  };
  const auto op = [&](const char* name, Phase phase, double ns,
                      std::vector<StorageId> reads,
                      std::vector<StorageId> writes = {}) {
    graph.ops.push_back({.time_ns = static_cast<int64_t>(ns),
                         .phase = phase,
                         .reads = std::move(reads),
                         .writes = std::move(writes),
                         .name = name});
  };
  enum { kX, kN1, kQ, kK, kV, kO, kX2, kN2, kGate, kUp, kSilu, kProd };
  std::vector<std::vector<StorageId>> made;
  const Phase forward = Phase::kForward, backward = Phase::kBackward;
  StorageId x = storage(h);
  op("input", forward, 0, {}, {x});
  graph.ops.back().kind = OpKind::kOnce;
  for (int layer = 0; layer < layers; ++layer) {
    std::vector<StorageId> s = {x};
    for (int i = kN1; i <= kN2; ++i) s.push_back(storage(h));
    for (int i = kGate; i <= kProd; ++i) s.push_back(storage(f));
    op("norm1", forward, moves(4 * h), {x}, {s[kN1]});
    op("qkv", forward, product(6 * h * h) + moves(12 * h), {s[kN1]},
       {s[kQ], s[kK], s[kV]});
    op("attention", forward, attention, {s[kQ], s[kK], s[kV]}, {s[kO]});
    op("out", forward, product(2 * h * h) + moves(6 * h), {s[kO], x}, {s[kX2]});
    op("norm2", forward, moves(4 * h), {s[kX2]}, {s[kN2]});
    op("gate_up", forward, product(4 * h * f), {s[kN2]}, {s[kGate], s[kUp]});
    op("silu", forward, moves(4 * f), {s[kGate]}, {s[kSilu]});
    op("mul", forward, moves(6 * f), {s[kSilu], s[kUp]}, {s[kProd]});
    std::vector<StorageId> next;
    if (layer + 1 < layers) next = {x = storage(h)};
    op("down", forward, product(2 * h * f) + moves(6 * h), {s[kProd], s[kX2]},
       next);
    made.push_back(std::move(s));
  }
  for (int layer = layers; layer-- > 0;) {
    const std::vector<StorageId>& s = made[layer];
    op("down", backward, 2 * product(2 * h * f), {s[kProd]});
    op("mul", backward, moves(10 * f), {s[kSilu], s[kUp]});
    op("silu", backward, moves(6 * f), {s[kGate]});
    op("gate_up", backward, 2 * product(4 * h * f) + moves(6 * h), {s[kN2]});
    op("norm2", backward, moves(8 * h), {s[kX2]});
    op("out", backward, 2 * product(2 * h * h), {s[kO]});
    op("attention", backward, 2.5 * attention / 0.9,
       {s[kQ], s[kK], s[kV], s[kO]});
    op("qkv", backward, 2 * product(6 * h * h) + moves(12 * h), {s[kN1]});
    op("norm1", backward, moves(8 * h), {s[kX]});
  }
  return graph;
}

}  // namespace reprise::planner
