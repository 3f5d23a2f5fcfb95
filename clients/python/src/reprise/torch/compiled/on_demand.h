// SPDX-License-Identifier: Apache-2.0
//
// Recomputes a storage when the step no longer follows its plan, from the
// records and the copies that exist. Uses are not counted and nothing is
// released: copies stay with their cells, because by then time matters more
// than memory.
//
// Iterative rather than recursive, because chains can be thousands of calls
// long.
#ifndef REPRISE_TORCH_COMPILED_ON_DEMAND_H_
#define REPRISE_TORCH_COMPILED_ON_DEMAND_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ambient.h"
#include "cells.h"
#include "replay.h"

namespace reprise_fast {

// A tensor that a recorded call reads was modified after the forward, by a
// write that was not observed.
struct ModifiedInput : std::runtime_error {
  ModifiedInput(at::Tensor found, uint32_t version)
      : std::runtime_error("a tensor that a recomputed op reads was modified"),
        tensor(std::move(found)),
        expected(version) {}
  at::Tensor tensor;
  uint32_t expected;
};

// Returns a view like `t` on a copy of its whole storage. The original may
// still be read by others.
inline at::Tensor CopyOfStorage(const at::Tensor& t) {
  const auto bytes = static_cast<int64_t>(t.storage().nbytes());
  const at::Tensor copy = at::empty({0}, t.options().dtype(at::kByte))
                              .set_(t.storage(), 0, {bytes}, {1})
                              .clone();
  return at::empty({0}, t.options())
      .set_(copy.storage(), t.storage_offset(), t.sizes(), t.strides());
}

class OnDemand {
 public:
  explicit OnDemand(Within& within) : within_(within) {}

  // Returns the content of a cell after `version` calls of its chain. Adds the
  // number of calls that run to `replayed`. Throws ModifiedInput, or
  // runtime_error if the records do not suffice.
  at::Tensor Make(const CellPtr& cell, int64_t version, int64_t& replayed) {
    std::vector<Wanted> todo = {{cell, version}};
    while (!todo.empty()) {
      const auto [target, at] = todo.back();
      if (Find(*target, at).defined()) {
        todo.pop_back();
        continue;
      }
      const size_t before = todo.size();
      for (int64_t i = StartOf(*target, at); i < at; ++i) {
        for (const Held& h : target->chain[static_cast<size_t>(i)]->held) {
          if (!h.tensor.defined() && !Find(*h.cell, h.version).defined())
            todo.emplace_back(h.cell, h.version);
        }
      }
      if (todo.size() == before) Run(target, at, replayed);
    }
    return Find(*cell, version);
  }

 private:
  using Wanted = std::pair<CellPtr, int64_t>;

  // Returns the copy of a cell at this version, or an undefined tensor.
  at::Tensor Find(const Cell& cell, int64_t version) const {
    if (cell.tensor.defined() && cell.version == version) return cell.tensor;
    const auto found = made_.find({&cell, version});
    return found == made_.end() ? at::Tensor() : found->second;
  }

  // Remembers a copy, and gives it to the cell if the cell has none.
  void Keep(Cell& cell, int64_t version, const at::Tensor& tensor) {
    made_[{&cell, version}] = tensor;
    if (cell.tensor.defined()) return;
    cell.tensor = tensor;
    cell.version = version;
  }

  // Returns the version from which recomputation starts: 0 if all calls up to
  // `version` are recorded, otherwise the latest copy from which they are.
  // Throws runtime_error if there is none.
  int64_t StartOf(const Cell& cell, int64_t version) const {
    if (cell.Recorded(0, version)) return 0;
    for (int64_t start = version - 1; start > 0; --start) {
      if (!cell.Recorded(start, start + 1)) break;
      if (Find(cell, start).defined()) return start;
    }
    throw std::runtime_error(
        "storage " + std::to_string(cell.id) +
        " of this step's plan cannot be recomputed at version " +
        std::to_string(version) +
        ": an internal error in Reprise, please report it; set "
        "REPRISE_DISABLE=1 to train without it");
  }

  // Returns the tensor that a recorded call reads. Throws ModifiedInput if it
  // was written since.
  at::Tensor Load(const Held& h) const {
    if (!h.tensor.defined()) return View(Find(*h.cell, h.version), h.geometry);
    if (h.tensor._version() != h.stale) throw ModifiedInput(h.tensor, h.stale);
    return h.tensor;
  }

  // Runs the calls of a chain up to `version`. Everything they read must exist.
  void Run(const CellPtr& target, int64_t version, int64_t& replayed) {
    const int64_t start = StartOf(*target, version);
    at::Tensor own;
    if (start > 0) own = CopyOfStorage(Find(*target, start));
    for (int64_t i = start; i < version; ++i) {
      const Node& node = *target->chain[static_cast<size_t>(i)];
      Stack stack =
          ArgumentsOf(node, own, [&](const Held& h) { return Load(h); });
      std::vector<at::Tensor> outputs;
      Call(node, stack, own.defined() ? nullptr : &outputs, within_);
      ++replayed;
      const size_t count = std::min(outputs.size(), node.outputs.size());
      for (size_t k = 0; k < count; ++k) {
        const CellPtr cell = node.outputs[k].lock();
        if (cell == target) {
          own = outputs[k];
        } else if (cell && cell->Length() == 1 && !Find(*cell, 1).defined()) {
          Keep(*cell, 1, outputs[k]);
        }
      }
    }
    if (!own.defined())
      throw std::runtime_error(
          "a recorded call returned a tensor without storage");
    Keep(*target, version, own);
  }

  Within& within_;
  // Recomputed copies, by cell and version.
  std::map<std::pair<const Cell*, int64_t>, at::Tensor> made_;
};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_ON_DEMAND_H_
