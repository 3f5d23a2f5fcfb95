// SPDX-License-Identifier: Apache-2.0
//
// Turns a call into a record: its arguments without the tensors, and for each
// tensor either the tensor itself or the cell from which it can be recomputed.
#ifndef REPRISE_TORCH_COMPILED_RECORDING_H_
#define REPRISE_TORCH_COMPILED_RECORDING_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "below.h"
#include "cells.h"
#include "sheet.h"
#include "shortcut.h"

namespace reprise_fast {

// Returns the record of a call that is about to run. `target` is the cell that
// the call writes in place, or null.
inline NodePtr Recorded(const Marks& marks, const Special& row,
                        const c10::OperatorHandle& op, const Stack& stack,
                        const CellPtr& target) {
  auto node = std::make_shared<Node>(op);
  node->replays = row.replays;
  node->grad = c10::GradMode::is_enabled();
  const auto count = op.schema().arguments().size();
  const auto begin = stack.end() - static_cast<long>(count);
  const bool skips = row.statistics >= 0 &&
                     (begin + row.statistics + 2)->isBool() &&
                     (begin + row.statistics + 2)->toBool();
  size_t seen = 0;
  const auto hold = [&](const at::Tensor& t, Place place) {
    const size_t at = seen++;
    const auto argument = static_cast<int64_t>(place.argument);
    if (skips && (argument == row.statistics || argument == row.statistics + 1))
      return;
    const int64_t planned =
        at < row.first_life_reads.size() ? row.first_life_reads[at] : -1;
    Held held;
    held.place = place;
    held.cell = marks.CellOf(t);
    if (!held.cell) {
      held.tensor = FirstLife(t);
      held.reads = planned == 0 ? -1 : planned;
    } else {
      held.geometry = GeometryOf(t);
      if (held.cell == target) {
        node->own.push_back({place, std::move(held.geometry)});
        return;
      }
      held.version = held.cell->Length();
      held.cell->Wait(held.version);
      held.reads = planned;
      if (planned > 0) held.tensor = FirstLife(t);
    }
    if (held.tensor.defined()) held.stale = held.tensor._version();
    node->held.push_back(std::move(held));
  };
  node->arguments.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const IValue& v = *(begin + static_cast<long>(i));
    if (v.isTensor()) {
      node->arguments.emplace_back();
      if (v.toTensor().defined()) hold(v.toTensor(), {i, -1});
    } else if (v.isTensorList()) {
      const auto items = v.toTensorVector();
      for (size_t k = 0; k < items.size(); ++k)
        if (items[k].defined()) hold(items[k], {i, static_cast<int64_t>(k)});
      // An empty list of the same type and length.
      node->arguments.emplace_back(std::vector<at::Tensor>(items.size()));
    } else if (v.isList() && !v.isIntList() && !v.isDoubleList() &&
               !v.isBoolList()) {
      auto list = v.toList().copy();
      for (size_t k = 0; k < list.size(); ++k) {
        const IValue item = list.get(k);
        if (!item.isTensor()) continue;
        if (item.toTensor().defined())
          hold(item.toTensor(), {i, static_cast<int64_t>(k)});
        list.set(k, IValue());
      }
      node->arguments.emplace_back(std::move(list));
    } else {
      node->arguments.push_back(v);
    }
  }
  if (skips) {
    node->arguments[static_cast<size_t>(row.statistics)] = IValue();
    node->arguments[static_cast<size_t>(row.statistics) + 1] = IValue();
    if (row.without_statistics) node->op = *row.without_statistics;
  }
  return node;
}

// Prepares the shortcut of a call that is about to run. Returns the tensor that
// will hold a random mask, or an undefined tensor. Marks a batch norm by
// setting `node.mean`.
inline at::Tensor PrepareShortcut(const Special& row,
                                  const c10::OperatorHandle& op,
                                  const Stack& stack, Node& node) {
  if (!row.shortens) return {};
  const auto count = op.schema().arguments().size();
  const auto begin = stack.end() - static_cast<long>(count);
  const auto optional = [&](long i) -> std::optional<at::Tensor> {
    if (!(begin + i)->isTensor()) return std::nullopt;
    return (begin + i)->toTensor();
  };
  const auto x = optional(0);
  if (!x || !x->defined()) return {};
  if (row.trains < 0) return IsMask(*x) ? *x : at::Tensor();
  if ((begin + row.trains)->toBool() &&
      Normalizes(*x, optional(1), optional(2)) && Rounding(x->scalar_type()))
    node.mean = *x;  // a placeholder until it has run
  return {};
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_RECORDING_H_
