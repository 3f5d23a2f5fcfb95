// SPDX-License-Identifier: Apache-2.0
//
// The records of one step: RunSpecial adds to them in the forward, Run and
// MakeOnDemand replay them in the backward.
//
// Runs without the GIL and touches no Python object, except through a `run`
// that calls Python, and where the state around the ops changes (ambient.h).
#ifndef REPRISE_TORCH_COMPILED_RECORDS_H_
#define REPRISE_TORCH_COMPILED_RECORDS_H_

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ambient.h"
#include "arguments.h"
#include "below.h"
#include "cells.h"
#include "on_demand.h"
#include "recording.h"
#include "replay.h"
#include "sheet.h"
#include "shortcut.h"

namespace reprise_fast {

// A discarded storage, and the tensor through which a call writes it.
struct Target {
  CellPtr cell;
  at::Tensor tensor;
};

// The result of running a call that was to be recorded.
struct Outcome {
  std::string failure;  // why a call that ran was not recorded; or ""
  bool safe = true;     // false: what it wrote cannot be recomputed
};

class Records {
 public:
  Surroundings surroundings;
  // Counts since they were last added to those of the run (CountUp).
  int64_t replayed = 0;
  int64_t dropped = 0;
  int64_t on_demand = 0;
  int64_t host = 0;  // key of what the step has in host memory

  const Marks& marks() const { return marks_; }
  void Sweep(bool all) { marks_.Sweep(all); }

  // Runs an op of a row that is recorded or that writes. `run` executes the
  // call and leaves its results on the stack.
  template <typename Run>
  Outcome RunSpecial(const Special& row, int64_t op_id,
                     const c10::OperatorHandle& op, Stack& stack, Run run) {
    std::vector<Target> targets;
    Outcome outcome;
    std::string& why = outcome.failure;
    // Two attempts: one may fail for lack of memory.
    for (int tried = 0; row.writes && tried < 2; ++tried) {
      try {
        targets = BeforeWrite(WrittenBy(op, stack));
        break;
      } catch (const std::exception& error) {
        why = error.what();
      }
    }
    const CellPtr target = targets.empty() ? nullptr : targets.back().cell;
    const auto length = target ? target->chain.size() : 0;
    NodePtr node;
    at::Tensor mask;
    try {
      if (row.replays != 0 && why.empty()) {
        marks_.Sweep(false);
        node = Recorded(marks_, row, op, stack, target);
        node->around = surroundings.Here();
        mask = PrepareShortcut(row, op, stack, *node);
        TakeState(row, mask, op, stack, *node);
      }
    } catch (const std::exception& error) {
      why = error.what();
      node.reset();
    }
    run();
    try {
      if (!row.parked.empty()) Park(row, op, stack);
      if (node) Ran(row, op_id, op, stack, target, node, mask);
    } catch (const std::exception& error) {
      why = error.what();
      node.reset();
    }
    // What an unrecorded call wrote cannot be recomputed.
    for (const Target& written : targets) {
      if (node) break;
      auto& chain = written.cell->chain;
      const bool half = written.cell == target && chain.size() > length;
      if (half) {
        chain.back() = nullptr;
      } else {
        chain.push_back(nullptr);
      }
      if (why.empty()) continue;
      outcome.safe = false;
      try {
        KeepWritten(written);
      } catch (const std::exception& error) {
        why = error.what();
      }
    }
    return outcome;
  }

  // Gives every record that still needs the old content of these tensors a copy
  // of it. Returns those whose storage the plan discards.
  std::vector<Target> BeforeWrite(const std::vector<at::Tensor>& written) {
    std::vector<Target> targets;
    for (const at::Tensor& t : written) {
      if (!t.has_storage()) continue;
      CopyHeld(t.storage().unsafeGetStorageImpl());
      if (CellPtr cell = marks_.CellOf(t)) {
        // Reserves now, so that appending after the call cannot fail.
        auto& chain = cell->chain;
        if (chain.size() == chain.capacity())
          chain.reserve(2 * chain.size() + 1);
        targets.push_back({std::move(cell), t});
      }
    }
    return targets;
  }

  // Notes that a call that is not recorded wrote these tensors: discarded
  // storages among them are kept from now on. Returns whether there was one.
  bool Written(const std::vector<at::Tensor>& written) {
    bool any = false;
    for (const at::Tensor& t : written) {
      const CellPtr cell = marks_.CellOf(t);
      if (!cell) continue;
      any = true;
      cell->chain.push_back(nullptr);
      KeepWritten({cell, t});
    }
    return any;
  }

  // Runs the replays of a burst. Returns false, and stops, if an input of one
  // of them is not available.
  bool Run(const std::vector<Replay>& burst) {
    const Alone alone;
    Within within(surroundings);
    for (const Replay& replay : burst) {
      const auto found = nodes.find(replay.op);
      const NodePtr node =
          found == nodes.end() ? nullptr : found->second.lock();
      if (!node) continue;
      if (!Again(*node, replay, within)) return false;
      ++replayed;
    }
    return true;
  }

  // Returns a version of a cell that the plan has not left in memory. Throws
  // ModifiedInput.
  at::Tensor MakeOnDemand(const CellPtr& cell, int64_t version) {
    const Alone alone;
    Within within(surroundings);
    return OnDemand(within).Make(cell, version, on_demand);
  }

  // Returns a view of a copy with the geometry of the tensor that autograd
  // saved.
  at::Tensor ViewAlone(const at::Tensor& t, const Geometry& g) const {
    if (LiesAs(t, g)) return t;
    const Alone alone;
    return View(t, g);
  }

  // Returns whether a record holds a tensor on this storage.
  bool Holds(const void* storage) const { return leaves_.contains(storage); }
  // Returns whether a record that holds a tensor may still be replayed.
  bool Waits() const {
    for (const auto& [storage, held] : leaves_) {
      for (const auto& weak : held) {
        const NodePtr node = weak.lock();
        if (node && !node->gone) return true;
      }
    }
    return false;
  }
  // The step has ended: releases everything.
  void Drop() {
    nodes.clear();
    leaves_.clear();
    marks_.Drop();
  }

  // Records by op of the step graph.
  std::unordered_map<int64_t, std::weak_ptr<Node>> nodes;

 private:
  // Saves the state of the generator before a call that draws from it.
  static void TakeState(const Special& row, const at::Tensor& mask,
                        const c10::OperatorHandle& op, const Stack& stack,
                        Node& node) {
    if (!row.seeded || mask.defined()) return;
    node.generator = at::globalContext().defaultGenerator(DeviceOf(stack, op));
    const std::lock_guard<std::mutex> lock(node.generator->mutex());
    node.state = node.generator->get_state();
  }

  // Returns the outputs of a call that has just run.
  static std::vector<at::Tensor> OutputsOf(const c10::OperatorHandle& op,
                                           const Stack& stack) {
    std::vector<at::Tensor> made;
    const auto returns = op.schema().returns().size();
    for (auto v = stack.end() - static_cast<long>(returns); v != stack.end();
         ++v)
      Flatten(*v, made);
    return made;
  }

  // Makes the cells of outputs that are sent to host memory: a call that
  // fetches them makes them again.
  void Park(const Special& row, const c10::OperatorHandle& op,
            const Stack& stack) {
    const auto made = OutputsOf(op, stack);
    for (size_t i = 0; i < std::min(made.size(), row.parked.size()); ++i) {
      const int64_t id = row.parked[i];
      if (id < 0) continue;
      auto node =
          std::make_shared<Node>(c10::Dispatcher::singleton().findSchemaOrThrow(
              "reprise::fetched", ""));
      node->fetches = true;
      node->grad = false;
      node->around = surroundings.Here();
      node->arguments = {IValue(host), IValue(id)};
      MakeCell(id, made[i], node);
      nodes[kFetched + id] = node;
    }
  }

  // Makes the cell of an output of a call.
  void MakeCell(int64_t id, const at::Tensor& made, const NodePtr& node) {
    auto cell = std::make_shared<Cell>();
    cell->id = id;
    cell->dtype = made.scalar_type();
    cell->chain.push_back(node);
    node->outputs.push_back(cell);
    marks_.Put(made, std::move(cell));
  }

  // Completes the record of a call that has just run: its outputs, and their
  // cells.
  void Ran(const Special& row, int64_t op_id, const c10::OperatorHandle& op,
           const Stack& stack, const CellPtr& target, const NodePtr& node,
           const at::Tensor& mask) {
    const auto made = OutputsOf(op, stack);
    if (mask.defined()) node->bits = BitsOf(mask);
    if (row.trains >= 0 && node->mean.defined()) {
      node->mean = AliasBelow(made[1]);
      node->deviation = AliasBelow(made[2]);
    }
    if (target) {
      node->outputs.push_back(target);
      target->chain.push_back(node);
    } else {
      for (size_t i = 0; i < made.size(); ++i) {
        const int64_t id = i < row.cells.size() ? row.cells[i] : -1;
        if (id < 0) {
          node->outputs.emplace_back();
          continue;
        }
        if (i < row.parked.size() && row.parked[i] == id) {
          node->outputs.push_back(marks_.CellOf(made[i]));
          continue;
        }
        MakeCell(id, made[i], node);
      }
    }
    nodes[op_id] = node;
    for (const Held& h : node->held) {
      if (h.tensor.defined())
        leaves_[h.tensor.storage().unsafeGetStorageImpl()].push_back(node);
    }
  }

  // Gives the records that hold a tensor on this storage a copy of it.
  void CopyHeld(const c10::StorageImpl* storage) {
    const auto found = leaves_.find(storage);
    if (found == leaves_.end()) return;
    for (const auto& weak : found->second) {
      const NodePtr node = weak.lock();
      if (!node) continue;
      for (Held& h : node->held) {
        if (!h.tensor.defined() ||
            h.tensor.storage().unsafeGetStorageImpl() != storage)
          continue;
        const Alone alone;
        h.tensor = h.tensor.detach().clone();
        h.stale = h.tensor._version();
      }
    }
    leaves_.erase(found);
  }

  // The last version cannot be recomputed, so the cell keeps an alias of the
  // tensor, which also shows later writes. Then the storage must no longer own
  // the cell: that would be a cycle.
  void KeepWritten(const Target& written) {
    Cell& cell = *written.cell;
    cell.tensor = AliasBelow(written.tensor);
    cell.version = cell.Length();
    if (marks_.CellOf(written.tensor) == written.cell)
      marks_.Erase(written.tensor);
  }

  // By storage: the records that hold a tensor on it.
  std::unordered_map<const void*, std::vector<std::weak_ptr<Node>>> leaves_;
  Marks marks_;
};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_RECORDS_H_
