// SPDX-License-Identifier: Apache-2.0
//
// Hands the records of a step to Python, where it goes on when something is not
// as planned: as tuples, from which handover.py makes cells, nodes and refs.
#ifndef REPRISE_TORCH_COMPILED_HANDOVER_H_
#define REPRISE_TORCH_COMPILED_HANDOVER_H_

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cells.h"
#include "digest.h"
#include "records.h"

namespace reprise_fast {

// Owns a reference; what could not be made ends the hand-over with Python's
// error.
class Object {
 public:
  explicit Object(PyObject* object) : object_(object) {
    if (object == nullptr) throw python_error();
  }
  Object(Object&& other) noexcept : object_(other.Release()) {}
  Object(const Object&) = delete;
  Object& operator=(Object&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Object() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* Release() {
    PyObject* const object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_;
};

inline Object Nothing() { return Object(Py_NewRef(Py_None)); }
inline Object Shown(int64_t n) { return Object(PyLong_FromLongLong(n)); }
inline Object Shown(const std::optional<Digest>& digest) {
  if (!digest) return Nothing();
  return Object(PyBytes_FromStringAndSize(
      reinterpret_cast<const char*>(digest->data()), sizeof(*digest)));
}
inline Object Shown(const at::Tensor& t) {
  return t.defined() ? Object(THPVariable_Wrap(t)) : Nothing();
}

template <typename Items, typename Show>
Object ListOf(const Items& items, Show show) {
  Object list(PyList_New(0));
  for (const auto& item : items) {
    const Object shown = show(item);
    if (PyList_Append(list.get(), shown.get()) < 0) throw python_error();
  }
  return list;
}

template <typename... Parts>
Object TupleOf(Parts&&... parts) {
  return Object(PyTuple_Pack(sizeof...(parts), parts.get()...));
}

inline Object Shown(const Geometry& g) {
  const auto number = [](int64_t n) { return Shown(n); };
  return TupleOf(ListOf(g.sizes, number), ListOf(g.strides, number),
                 Shown(g.offset));
}

// An argument that is no tensor; where one stood, None.
inline Object Shown(const IValue& v) {
  if (v.isInt()) return Shown(v.toInt());
  if (v.isBool()) return Object(PyBool_FromLong(v.toBool()));
  if (v.isDouble()) return Object(PyFloat_FromDouble(v.toDouble()));
  if (v.isString()) {
    const std::string& text = v.toStringRef();
    return Object(PyUnicode_FromStringAndSize(
        text.data(), static_cast<Py_ssize_t>(text.size())));
  }
  if (v.isDevice()) return Object(THPDevice_New(v.toDevice()));
  if (v.isComplexDouble()) {
    const auto z = v.toComplexDouble();
    return Object(PyComplex_FromDoubles(z.real(), z.imag()));
  }
  if (v.isIntList())
    return ListOf(v.toIntVector(), [](int64_t n) { return Shown(n); });
  if (v.isList()) {
    const auto items = v.toListRef();
    return ListOf(items, [](const IValue& item) { return Shown(item); });
  }
  return Nothing();
}

// A ref as it is handed over.
struct ShownRef {
  int64_t slot = 0;
  int64_t version = 0;
  const CellPtr& cell;
  const Geometry& geometry;
  const at::Tensor& made;
  const std::optional<Digest>& given;
  int64_t firsts = 0;
  int64_t stale = 0;
};

class Handover {
 public:
  explicit Handover(const Records& records) : records_(records) {
    for (const auto& [op, weak] : records.nodes) {
      if (const NodePtr node = weak.lock()) AddNode(node);
    }
    for (const auto& [storage, mark] : records.marks().all())
      AddCell(mark.cell);
  }
  void AddRef(const CellPtr& cell) { AddCell(cell); }

  // (nodes, cells); numbers of cells and nodes are places in these lists.
  Object Show() {
    Follow();
    const Object nodes =
        ListOf(nodes_, [&](const NodePtr& node) { return Shown(*node); });
    const Object cells =
        ListOf(cells_, [&](const CellPtr& cell) { return ShownCell(cell); });
    return TupleOf(nodes, cells);
  }
  Object Show(const ShownRef& ref) {
    return TupleOf(Shown(ref.slot), Number(ref.cell), Shown(ref.version),
                   Shown(ref.geometry), Shown(ref.made), Shown(ref.given),
                   Shown(ref.firsts), Shown(ref.stale));
  }

 private:
  template <typename T>
  static Object Shown(const T& value) {
    return reprise_fast::Shown(value);
  }

  void AddCell(const CellPtr& cell) {
    if (!cell || !cell_numbers_.emplace(cell.get(), cells_.size()).second)
      return;
    cells_.push_back(cell);
  }
  void AddNode(const NodePtr& node) {
    if (!node || !node_numbers_.emplace(node.get(), nodes_.size()).second)
      return;
    nodes_.push_back(node);
  }
  // What those that are known lead to.
  void Follow() {
    size_t cell = 0, node = 0;
    while (cell < cells_.size() || node < nodes_.size()) {
      if (cell < cells_.size()) {
        const CellPtr next = cells_[cell++];
        for (const NodePtr& link : next->chain) AddNode(link);
      } else {
        const NodePtr next = nodes_[node++];
        for (const Held& h : next->held) AddCell(h.cell);
        for (const auto& weak : next->outputs) AddCell(weak.lock());
      }
    }
  }
  Object Number(const CellPtr& cell) const {
    return Shown(cell ? static_cast<int64_t>(cell_numbers_.at(cell.get()))
                      : int64_t{-1});
  }

  Object Shown(const Node& node) {
    const Object held = ListOf(node.held, [&](const Held& h) {
      return TupleOf(Shown(static_cast<int64_t>(h.place.argument)),
                     Shown(h.place.item), Shown(h.tensor),
                     Shown(static_cast<int64_t>(h.stale)), Shown(h.reads),
                     Number(h.cell), Shown(h.version), Shown(h.geometry));
    });
    const Object own = ListOf(node.own, [&](const Own& o) {
      return TupleOf(Shown(static_cast<int64_t>(o.place.argument)),
                     Shown(o.place.item), Shown(o.geometry));
    });
    const Object outputs = ListOf(
        node.outputs, [&](const auto& weak) { return Number(weak.lock()); });
    const Object arguments = ListOf(
        node.arguments, [](const IValue& v) { return reprise_fast::Shown(v); });
    const Object device = node.generator
                              ? Object(THPDevice_New(node.generator->device()))
                              : Nothing();
    const Object grad(PyBool_FromLong(node.grad));
    const Object gone(PyBool_FromLong(node.gone));
    return TupleOf(Shown(node.row), Shown(node.replays), grad, gone, arguments,
                   held, own, outputs, device, Shown(node.state),
                   Shown(node.mean), Shown(node.deviation), Shown(node.bits));
  }

  Object ShownCell(const CellPtr& cell) {
    const Object chain = ListOf(cell->chain, [&](const NodePtr& node) {
      return Shown(node ? static_cast<int64_t>(node_numbers_.at(node.get()))
                        : int64_t{-1});
    });
    const Object waiting = ListOf(cell->waiting, [&](const auto& entry) {
      return TupleOf(Shown(entry.first), Shown(entry.second));
    });
    const Object dtype(Py_NewRef(
        reinterpret_cast<PyObject*>(torch::getTHPDtype(cell->dtype))));
    Object storage = Nothing();
    for (const auto& [address, mark] : records_.marks().all()) {
      if (mark.cell != cell) continue;
      if (auto alive = mark.storage.lock())
        storage = Object(THPStorage_Wrap(c10::Storage(std::move(alive))));
      break;
    }
    return TupleOf(Shown(cell->id), chain, dtype, Shown(cell->tensor),
                   Shown(cell->version), Shown(cell->uses), waiting, storage);
  }

  const Records& records_;
  std::vector<NodePtr> nodes_;
  std::vector<CellPtr> cells_;
  std::unordered_map<const Node*, size_t> node_numbers_;
  std::unordered_map<const Cell*, size_t> cell_numbers_;
};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_HANDOVER_H_
