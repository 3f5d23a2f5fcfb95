// SPDX-License-Identifier: Apache-2.0
//
// Runs a training step in plain C++ within a budget. The network has layers
// h[l] = tanh(h[l-1] * w[l]), cell by cell, and hand-written gradients of the
// weights.
//
//   scripts/build
//   reprise run -- build/bin/client_example 0.5x
//
// Prints predicted and measured bytes, and how many gradients differ from those
// of a step without a plan.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "plan.h"

namespace {

constexpr int kLayers = 12;
constexpr size_t kCells = 1 << 16;
using Array = std::vector<float>;

// The step's graph, and the code of every op.
struct Program {
  reprise::Graph graph{"layers in C++", kLayers* int64_t{sizeof(float)}};
  std::vector<std::function<void()>> code;
  std::vector<std::unique_ptr<Array>> memory;  // by storage; null: freed
  std::vector<size_t> cells;
  std::vector<int> gradients;
  int64_t alive = 0, peak = 0;

  int Storage(size_t count, const char* name) {
    cells.push_back(count);
    memory.emplace_back();
    return graph.AddStorage(static_cast<int64_t>(count * sizeof(float)), name);
  }
  Array& Get(int storage) { return *memory[storage]; }
  void Allocate(int storage) {
    if (memory[storage]) return;
    memory[storage] = std::make_unique<Array>(cells[storage]);
    alive += static_cast<int64_t>(cells[storage] * sizeof(float));
    peak = alive > peak ? alive : peak;
  }
  void Free(int storage) {
    memory[storage].reset();
    alive -= static_cast<int64_t>(cells[storage] * sizeof(float));
  }

  // Runs a schedule and returns the gradients; `peak` is then the step's.
  std::vector<Array> Run(const std::vector<int>& schedule) {
    for (auto& array : memory) array.reset();
    alive = peak = graph.static_bytes();
    for (const int entry : schedule) {
      if (entry < 0) {
        Free(-entry - 1);
        continue;
      }
      for (const int storage : graph.ops()[entry].writes) Allocate(storage);
      code[entry]();
    }
    std::vector<Array> found;
    for (const int storage : gradients) found.push_back(Get(storage));
    return found;
  }
};

void Build(Program& p, const std::vector<float>& weights) {
  std::vector<int> h = {p.Storage(kCells, "input")};
  const auto add = [&p](reprise::Op op, std::function<void()> code) {
    op.time_ns = 100'000;
    p.graph.AddOp(std::move(op));
    p.code.push_back(std::move(code));
  };
  add({.name = "input", .writes = {h[0]}}, [&p, s = h[0]] {
    for (size_t i = 0; i < kCells; ++i) p.Get(s)[i] = float(i % 97) / 97;
  });
  for (int l = 0; l < kLayers; ++l) {
    h.push_back(p.Storage(kCells, "activation"));
    add({.name = "layer", .reads = {h[l]}, .writes = {h[l + 1]}},
        [&p, w = weights[l], x = h[l], y = h[l + 1]] {
          for (size_t i = 0; i < kCells; ++i)
            p.Get(y)[i] = tanhf(p.Get(x)[i] * w);
        });
  }
  int above = h[kLayers];  // the loss is half the sum of squares
  for (int l = kLayers - 1; l >= 0; --l) {
    const int dw = p.Storage(1, "weight gradient");
    const int dx = p.Storage(kCells, "gradient");
    add({.name = "layer backward",
         .reads = above == h[l + 1] ? std::vector<int>{h[l], above}
                                    : std::vector<int>{h[l], h[l + 1], above},
         .writes = {dw, dx},
         .backward = true},
        [&p, w = weights[l], x = h[l], y = h[l + 1], above, dw, dx] {
          float sum = 0;
          for (size_t i = 0; i < kCells; ++i) {
            const float t = p.Get(y)[i];
            const float d = p.Get(above)[i] * (1 - t * t);
            sum += d * p.Get(x)[i];
            p.Get(dx)[i] = d * w;
          }
          p.Get(dw)[0] = sum;
        });
    p.gradients.push_back(dw);
    p.graph.Require(dw);
    above = dx;
  }
}

// Returns the schedule without a plan: every op once, each storage freed after
// the last op that uses it.
std::vector<int> PlainSchedule(const reprise::Graph& graph,
                               const std::vector<int>& kept) {
  std::vector<int> last(graph.storage_count(), -1), schedule;
  for (size_t o = 0; o < graph.ops().size(); ++o) {
    for (const int s : graph.ops()[o].reads) last[s] = static_cast<int>(o);
    for (const int s : graph.ops()[o].writes) last[s] = static_cast<int>(o);
  }
  for (const int s : kept) last[s] = -1;
  for (size_t o = 0; o < graph.ops().size(); ++o) {
    schedule.push_back(static_cast<int>(o));
    for (int s = 0; s < graph.storage_count(); ++s) {
      if (last[s] == static_cast<int>(o)) schedule.push_back(-s - 1);
    }
  }
  return schedule;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<float> weights(kLayers, 0.9f);
  Program p;
  Build(p, weights);
  const auto plain = p.Run(PlainSchedule(p.graph, p.gradients));
  const int64_t plain_peak = p.peak;

  reprise::Session session;
  session.ReportStep(nullptr, 0, plain_peak, 0);
  const reprise::Answer answer =
      session.Ask(p.graph, argc > 1 ? argv[1] : "0.5x");
  if (!answer.ok) {
    std::printf("no plan: %s\n", answer.why.c_str());
    return 1;
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto planned = p.Run(answer.schedule);
  const auto took = std::chrono::steady_clock::now() - begin;
  uint32_t differing = 0;
  for (size_t i = 0; i < plain.size(); ++i) differing += plain[i] != planned[i];
  session.ReportStep(
      &answer, 1, p.peak,
      std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
  session.ReportCheck(answer, 1, static_cast<uint32_t>(plain.size()),
                      differing);
  std::printf("plain %lld bytes, predicted %lld, measured %lld, %u differ\n",
              static_cast<long long>(plain_peak),
              static_cast<long long>(answer.peak_bytes),
              static_cast<long long>(p.peak), differing);
  return 0;
}
