// SPDX-License-Identifier: Apache-2.0
//
// The records of one step: RunSpecial in the forward, Run in the backward.
//
// Whatever is not as planned is no business of this half: it says so (false),
// everything is handed over to Python (handover.h), and the step goes on there.
// So none of on-demand replays, disarmed forwards, compared copies and retained
// graphs is written twice.
//
// Runs without the interpreter's lock: no Python object is touched here.
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

#include "arguments.h"
#include "below.h"
#include "cells.h"
#include "marks.h"
#include "recording.h"
#include "replay.h"
#include "sheet.h"
#include "shortcut.h"

namespace reprise_fast {

class Records {
 public:
  // Since they were last added to the counts of the run (CountUp).
  int64_t replayed = 0;
  int64_t dropped = 0;

  const Marks& marks() const { return marks_; }
  void Sweep(bool all) { marks_.Sweep(all); }

  // Runs a row that has something to do: `run` runs the call itself. Why it
  // could not be recorded, though it has run; empty: it is.
  template <typename Run>
  std::string RunSpecial(const Special& row, int64_t number, int64_t op_id,
                         const c10::OperatorHandle& op, Stack& stack, Run run) {
    std::vector<CellPtr> targets;
    std::string why;
    // Twice: once it may fail.
    for (int tried = 0; row.writes && tried < 2; ++tried) {
      try {
        targets = BeforeWrite(op, stack);
        break;
      } catch (const std::exception& error) {
        why = error.what();
      }
    }
    const CellPtr target = targets.empty() ? nullptr : targets.back();
    const auto length = target ? target->chain.size() : 0;
    NodePtr node;
    at::Tensor mask;
    try {
      if (row.replays != 0 && why.empty()) {
        marks_.Sweep(false);
        node = Recorded(marks_, row, number, op, stack, target);
        mask = PrepareShortcut(row, op, stack, *node);
        TakeState(row, mask, op, stack, *node);
      }
    } catch (const std::exception& error) {
      why = error.what();
      node.reset();
    }
    run();
    try {
      if (node) Ran(row, op_id, op, stack, target, node, mask);
    } catch (const std::exception& error) {
      why = error.what();
      node.reset();
    }
    // What was written by a call that is not recorded is not made again.
    for (const CellPtr& cell : targets) {
      const bool recorded = node && cell == target;
      const bool half = !node && cell == target && cell->chain.size() > length;
      if (half) cell->chain.back() = nullptr;
      if (!recorded && !half && (!node || row.replays == 0))
        cell->chain.push_back(nullptr);
    }
    return why;
  }

  // What a burst of the program says. False: not everything is there.
  bool Run(const std::vector<Replay>& burst) {
    const Alone alone;
    for (const Replay& replay : burst) {
      const auto found = nodes.find(replay.op);
      const NodePtr node =
          found == nodes.end() ? nullptr : found->second.lock();
      if (!node) continue;
      if (!Again(*node, replay)) return false;
      ++replayed;
    }
    return true;
  }

  // A view on a copy, as the tensor was that autograd saved.
  at::Tensor ViewAlone(const at::Tensor& t, const Geometry& g) const {
    if (LiesAs(t, g)) return t;
    const Alone alone;
    return View(t, g);
  }

  // Does a record hold a tensor on this storage?
  bool Holds(const void* storage) const { return leaves_.contains(storage); }
  // May a record that holds something still be replayed?
  bool Waits() const {
    for (const auto& [storage, held] : leaves_) {
      for (const auto& weak : held) {
        const NodePtr node = weak.lock();
        if (node && !node->gone) return true;
      }
    }
    return false;
  }
  // The step is over, or goes on in Python.
  void Drop() {
    nodes.clear();
    leaves_.clear();
    marks_.Drop();
  }

  // By op of the step graph.
  std::unordered_map<int64_t, std::weak_ptr<Node>> nodes;

 private:
  // The generator, before a call that draws from it.
  static void TakeState(const Special& row, const at::Tensor& mask,
                        const c10::OperatorHandle& op, const Stack& stack,
                        Node& node) {
    if (!row.seeded || mask.defined()) return;
    node.generator = at::globalContext().defaultGenerator(DeviceOf(stack, op));
    const std::lock_guard<std::mutex> lock(node.generator->mutex());
    node.state = node.generator->get_state();
  }

  // A call that is recorded has run.
  void Ran(const Special& row, int64_t op_id, const c10::OperatorHandle& op,
           const Stack& stack, const CellPtr& target, const NodePtr& node,
           const at::Tensor& mask) {
    std::vector<at::Tensor> made;
    const auto returns = op.schema().returns().size();
    for (auto v = stack.end() - static_cast<long>(returns); v != stack.end();
         ++v)
      Flatten(*v, made);
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
        auto cell = std::make_shared<Cell>();
        cell->id = id;
        cell->dtype = made[i].scalar_type();
        cell->chain.push_back(node);
        node->outputs.push_back(cell);
        marks_.Put(made[i], std::move(cell));
      }
    }
    nodes[op_id] = node;
    for (const Held& h : node->held) {
      if (h.tensor.defined())
        leaves_[h.tensor.storage().unsafeGetStorageImpl()].push_back(node);
    }
  }

  // Gives records that still need the old content a copy of it. What is
  // written, of what is given up.
  std::vector<CellPtr> BeforeWrite(const c10::OperatorHandle& op,
                                   const Stack& stack) {
    std::vector<CellPtr> targets;
    const auto& arguments = op.schema().arguments();
    const IValue* const first =
        stack.data() + (stack.size() - arguments.size());
    std::vector<at::Tensor> written;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = arguments[i].alias_info();
      if (alias != nullptr && alias->isWrite()) Flatten(first[i], written);
    }
    for (const at::Tensor& t : written) {
      const c10::StorageImpl* const storage =
          t.storage().unsafeGetStorageImpl();
      const auto found = leaves_.find(storage);
      if (found != leaves_.end()) {
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
      if (CellPtr cell = marks_.CellOf(t)) {
        // What is added to it behind the call is not to fail.
        auto& chain = cell->chain;
        if (chain.size() == chain.capacity())
          chain.reserve(2 * chain.size() + 1);
        targets.push_back(std::move(cell));
      }
    }
    return targets;
  }

  // Storage -> records that hold a tensor on it.
  std::unordered_map<const void*, std::vector<std::weak_ptr<Node>>> leaves_;
  Marks marks_;
};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_RECORDS_H_
