// SPDX-License-Identifier: Apache-2.0
//
// Runs a recorded call again, as planned.
//
// A replay reads the tensors that the record holds and the copies in the cells.
// A call that drew random numbers runs from the generator state it had the
// first time; the state is restored afterwards. What else a kernel reads is as
// it was when the call was recorded (ambient.h). A call with a shortcut
// (shortcut.h) is replaced by it. The caller holds an Alone (below.h). If
// something is not as planned, `Again` returns false before anything has
// changed; the tensor is then recomputed on demand (on_demand.h).
#ifndef REPRISE_TORCH_COMPILED_REPLAY_H_
#define REPRISE_TORCH_COMPILED_REPLAY_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ambient.h"
#include "arguments.h"
#include "cells.h"
#include "sheet.h"
#include "shortcut.h"

namespace reprise_fast {

// Returns a view of `t` with this geometry.
inline at::Tensor View(const at::Tensor& t, const Geometry& g) {
  return LiesAs(t, g) ? t : t.as_strided(g.sizes, g.strides, g.offset);
}

// Returns the arguments for running a call again. `own` is the copy of the
// tensor that the call writes in place; `load` returns the tensor for each one
// that it reads.
template <typename Load>
Stack ArgumentsOf(const Node& node, const at::Tensor& own, Load load) {
  Stack stack = node.arguments;
  // Lists share their elements with the record, so they are copied before they
  // are filled.
  for (IValue& v : stack) {
    if (v.isList() && !v.isIntList() && !v.isDoubleList() && !v.isBoolList())
      v = IValue(v.toList().copy());
  }
  const auto put = [&](const Place& place, at::Tensor t) {
    IValue& v = stack[place.argument];
    if (place.item < 0) {
      v = IValue(std::move(t));
      return;
    }
    auto list = v.toList();
    list.set(static_cast<size_t>(place.item), IValue(std::move(t)));
  };
  for (const Own& o : node.own) put(o.place, View(own, o.geometry));
  for (const Held& h : node.held) put(h.place, load(h));
  return stack;
}

// Returns the cell that a call writes in place, or null.
inline CellPtr OwnerOf(const Node& node) {
  return node.own.empty() ? nullptr : node.outputs[0].lock();
}

// Releases the arguments of a call whose last planned replay has run.
inline void DoneWith(Node& node) {
  if (node.fetches) return;
  for (const auto& weak : node.outputs) {
    const CellPtr cell = weak.lock();
    if (!cell || (cell->chain[0] && cell->chain[0]->fetches)) continue;
    // Still needed: this call is the only source of one of its outputs.
    if (!cell->waiting.empty() && !cell->tensor.defined()) return;
  }
  node.Forget();
}

// Runs a call, or its shortcut, on the arguments in `stack` and appends its
// outputs to `made`. `made` is null for a call that writes in place; such a
// call does not fail after it has written.
inline void Call(const Node& node, Stack& stack, std::vector<at::Tensor>* made,
                 Within& within) {
  within.Be(node.around);
  const c10::AutoGradMode grad(node.grad);
  if (node.bits.defined()) {
    SpreadBits(node.bits, stack[0].toTensor());
    return;
  }
  if (node.mean.defined()) {
    const auto optional = [&](size_t i) -> std::optional<at::Tensor> {
      if (!stack[i].isTensor()) return std::nullopt;
      return stack[i].toTensor();
    };
    const at::Tensor x = stack[0].toTensor();
    *made = {Normalized(x, optional(1), optional(2), node.mean, node.deviation,
                        *Rounding(x.scalar_type())),
             node.mean, node.deviation};
    stack.clear();
    return;
  }
  if (!node.state.defined()) {
    node.op.callBoxed(stack);
  } else {
    at::Generator generator = *node.generator;
    at::Tensor before;
    const auto put = [&](const at::Tensor& state) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    };
    {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      before = generator.get_state();
    }
    put(node.state);
    try {
      node.op.callBoxed(stack);
    } catch (...) {
      put(before);
      throw;
    }
    put(before);
  }
  if (made != nullptr) {
    for (const IValue& v : stack) Flatten(v, *made);
  }
  stack.clear();
}

// Runs one replay of a burst. Returns false if not all of its inputs are
// available.
inline bool Again(Node& node, const Replay& replay, Within& within) {
  if (node.gone) return false;
  const CellPtr owner = OwnerOf(node);
  at::Tensor own;
  if (owner) {
    own = owner->tensor;
    if (!own.defined() || owner->version >= owner->Length()) return false;
    if (owner->chain[static_cast<size_t>(owner->version)].get() != &node)
      return false;
  } else {
    for (const auto& weak : node.outputs) {
      const CellPtr cell = weak.lock();
      if (cell && cell->OnlyWayBack()) return false;
    }
  }
  for (const Held& h : node.held) {
    if (h.tensor.defined()) {
      if (h.tensor._version() != h.stale) return false;  // reported on demand
    } else if (!h.cell || !h.cell->tensor.defined() ||
               h.cell->version != h.version) {
      return false;
    }
  }
  Stack stack = ArgumentsOf(node, own, [](const Held& h) {
    return h.tensor.defined() ? h.tensor : View(h.cell->tensor, h.geometry);
  });
  std::vector<CellPtr> used;
  for (Held& h : node.held) {
    if (!h.tensor.defined()) {
      if (std::find(used.begin(), used.end(), h.cell) == used.end())
        used.push_back(h.cell);
    } else if (h.reads > 0) {
      --h.reads;
      const bool elsewhere = h.cell && (h.cell->tensor.defined() ||
                                        h.cell->Recorded(0, h.version));
      if (h.reads == 0 && elsewhere) h.tensor.reset();
    }
  }
  --node.replays;
  own.reset();
  // Exception safety: the cell's version must advance exactly when the call has
  // written, because running an in-place call twice would change the bits.
  used.reserve(used.size() + 1);
  std::vector<at::Tensor> made;
  Call(node, stack, owner ? nullptr : &made, within);
  if (owner) {
    ++owner->version;
    used.push_back(owner);
  } else {
    const size_t count = std::min(made.size(), node.outputs.size());
    for (size_t i = 0; i < count; ++i) {
      const CellPtr cell = node.outputs[i].lock();
      if (!cell) continue;
      for (const auto& [id, uses] : replay.keep) {
        if (id != cell->id) continue;
        cell->tensor = std::move(made[i]);
        cell->version = 1;
        cell->uses = uses;
        break;
      }
    }
  }
  made.clear();
  if (node.replays == 0) DoneWith(node);
  for (const CellPtr& cell : used) cell->Use();
  return true;
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_REPLAY_H_
