// SPDX-License-Identifier: Apache-2.0
//
// What the tape remembers and makes again, without Python: records.py and
// replay.py for as long as everything comes as captured.
//
//   Cell     a storage that is given up: the calls that made it, its copy
//   Node     a recorded call; Held: one of its tensors
//   Records  those of one step: Record in the forward, Run in the backward
//
// Owners are as in records.py: from autograd's side, nothing points back
// strongly. Whatever is not as planned is no business of this file: it says so
// (false), everything is handed over to Python (fast_export.h), and the step
// goes on there. So none of on-demand replays, disarmed forwards, compared
// copies and retained graphs is written twice.
//
// Runs without the interpreter's lock: no Python object is touched here.
#ifndef REPRISE_TORCH_FAST_RECORDS_H_
#define REPRISE_TORCH_FAST_RECORDS_H_

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fast_shortcut.h"

namespace reprise_fast {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using Stack = std::vector<IValue>;

// ---- What a program says ---------------------------------------------------

// A row that has something to do (program.Row).
struct Special {
  int64_t replays = 0;  // 0: not recorded
  bool writes = false;
  bool seeded = false;
  bool shortens = false;
  int64_t trains = -1;  // argument that says whether statistics are computed
  // Of a batch norm: where its running statistics stand; -1: it is none.
  int64_t statistics = -1;
  std::optional<c10::OperatorHandle> without_statistics;
  std::vector<int64_t> cells;             // by output
  std::vector<int64_t> first_life_reads;  // by tensor argument
};

struct Replay {
  int64_t op = 0;
  std::vector<std::pair<int64_t, int64_t>> keep;  // storage, uses
};

// ---- Records ---------------------------------------------------------------

struct Geometry {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

inline Geometry GeometryOf(const at::Tensor& t) {
  return {t.sizes().vec(), t.strides().vec(), t.storage_offset()};
}

inline bool LiesAs(const at::Tensor& t, const Geometry& g) {
  return t.storage_offset() == g.offset && t.sizes() == g.sizes &&
         t.strides() == g.strides;
}

struct Cell;
struct Node;
using CellPtr = std::shared_ptr<Cell>;
using NodePtr = std::shared_ptr<Node>;

// Where a tensor stands among the arguments: number, and place in a list or -1.
struct Place {
  size_t argument = 0;
  int64_t item = -1;
};

// One tensor of a recorded call; see records.Held.
struct Held {
  Place place;
  at::Tensor tensor;
  uint32_t stale = 0;
  int64_t reads = -1;
  CellPtr cell;
  int64_t version = 0;
  Geometry geometry;
};

// The storage a call writes in place.
struct Own {
  Place place;
  Geometry geometry;
};

// Takes chains of records apart one by one: each is owned by the next, and
// thousands of destructors inside each other would end the stack.
inline void Bury(CellPtr cell) {
  thread_local std::vector<CellPtr> grave;
  thread_local bool busy = false;
  grave.push_back(std::move(cell));
  if (busy) return;
  busy = true;
  while (!grave.empty()) {
    const CellPtr next = std::move(grave.back());
    grave.pop_back();
  }
  busy = false;
}

struct Node {
  c10::OperatorHandle op;
  int64_t row = 0;
  int64_t replays = 0;
  bool gone = false;  // its last planned replay has run
  bool grad = false;
  Stack arguments;  // nothing where tensors stand
  std::vector<Held> held;
  std::vector<Own> own;
  std::vector<std::weak_ptr<Cell>> outputs;
  // Of the generator, before the call.
  at::Tensor state;
  std::optional<at::Generator> generator;
  // Instead of the call: statistics, or the bits of a mask.
  at::Tensor mean, deviation, bits;

  explicit Node(const c10::OperatorHandle& called) : op(called) {}
  Node(const Node&) = delete;
  ~Node() { Clear(); }
  void Clear() {
    for (Held& h : held) {
      if (h.cell) Bury(std::move(h.cell));
    }
    held.clear();
    own.clear();
    arguments.clear();
    state = mean = deviation = bits = at::Tensor();
  }
  inline void Forget();
};

struct Cell {
  int64_t id = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<NodePtr> chain;  // nullptr: not recorded
  at::Tensor tensor;
  int64_t version = 0;
  int64_t uses = 0;
  std::map<int64_t, int64_t> waiting;  // by version

  void Wait(int64_t at) { ++waiting[at]; }
  void Waited(int64_t at) {
    const auto found = waiting.find(at);
    if (found != waiting.end() && --found->second == 0) waiting.erase(found);
  }
  bool Recorded(int64_t first, int64_t end) const {
    for (int64_t i = first; i < end; ++i) {
      const Node* const node = chain[static_cast<size_t>(i)].get();
      if (node == nullptr || node->gone) return false;
    }
    return true;
  }
  bool IsWhole() const {
    return std::find(chain.begin(), chain.end(), nullptr) == chain.end();
  }
  int64_t Length() const { return static_cast<int64_t>(chain.size()); }
  // Does somebody wait for the copy, which cannot be made again?
  bool OnlyWayBack() const {
    if (!tensor.defined() || waiting.empty()) return false;
    return !Recorded(0, std::min(Length(), waiting.rbegin()->first));
  }
  // One planned use is over.
  void Use() {
    --uses;
    if (uses <= 0 && !OnlyWayBack()) {
      tensor.reset();
      version = 0;
    }
  }
};

inline void Node::Forget() {
  for (const Held& h : held) {
    if (h.cell) h.cell->Waited(h.version);
  }
  gone = true;
  Clear();
}

// ---- Below autograd, autocast and every mode
// ----------------------------------

struct Alone {
  at::AutoDispatchBelowAutograd autograd;
  c10::impl::ExcludeDispatchKeyGuard rest;
  c10::AutoGradMode grad;
  explicit Alone(DispatchKey gate)
      : rest(
            c10::autocast_dispatch_keyset |
            DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                            DispatchKey::PreDispatch, gate})),
        grad(c10::GradMode::is_enabled()) {}
};

// An alias without grad_fn that shares the version counter.
inline at::Tensor AliasBelow(const at::Tensor& t) {
  // A mode on the stack is asked otherwise, whatever the thread's keys are.
  const c10::impl::ExcludeDispatchKeyGuard unseen(DispatchKey::Python);
  c10::TensorImpl* const impl = t.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(
      impl->version_counter(), /*allow_tensor_metadata_change=*/false));
}

inline at::Tensor FirstLife(const at::Tensor& t) {
  // One with a grad_fn would keep autograd's graph alive, and through it this.
  return t.grad_fn() == nullptr ? t : AliasBelow(t);
}

// ---- The records of a step
// ---------------------------------------------------

class Records {
 public:
  explicit Records(DispatchKey gate) : gate_(gate) {}

  int64_t replayed = 0;
  int64_t dropped = 0;

  // The cell of the storage behind a tensor.
  CellPtr CellOf(const at::Tensor& t) const {
    if (marks_.empty() || !t.defined() || !t.has_storage()) return nullptr;
    const auto found = marks_.find(t.storage().unsafeGetStorageImpl());
    // The weak reference keeps the address from being used again.
    if (found == marks_.end() || found->second.storage.expired())
      return nullptr;
    return found->second.cell;
  }

  // Can this call be recorded, and shown to Python later?
  static bool CanRecord(const c10::OperatorHandle& op, const Stack& stack) {
    const auto count = op.schema().arguments().size();
    return std::all_of(stack.end() - static_cast<long>(count), stack.end(),
                       [](const IValue& v) { return CanShow(v, true); });
  }

  // Runs a row that has something to do: `run` runs the call itself.
  template <typename Run>
  void RunSpecial(const Special& row, int64_t number, int64_t op_id,
                  const c10::OperatorHandle& op, Stack& stack, Run run) {
    const std::vector<CellPtr> targets =
        row.writes ? BeforeWrite(op, stack) : std::vector<CellPtr>();
    if (row.replays == 0) {
      run();
      for (const CellPtr& cell : targets) cell->chain.push_back(nullptr);
      return;
    }
    Sweep(false);
    const CellPtr target = targets.empty() ? nullptr : targets.back();
    const NodePtr node = Recorded(row, number, op, stack, target);
    const at::Tensor mask = PrepareShortcut(row, op, stack, *node);
    if (row.seeded && !mask.defined()) {
      node->generator =
          at::globalContext().defaultGenerator(DeviceOf(stack, op));
      const std::lock_guard<std::mutex> lock(node->generator->mutex());
      node->state = node->generator->get_state();
    }
    run();
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
        Mark(made[i], std::move(cell));
      }
    }
    nodes[op_id] = node;
    for (const Held& h : node->held) {
      if (h.tensor.defined())
        leaves_[h.tensor.storage().unsafeGetStorageImpl()].push_back(node);
    }
  }

  // What a burst of the program says. False: not everything is there.
  bool Run(const std::vector<Replay>& burst) {
    const Alone alone(gate_);
    for (const Replay& replay : burst) {
      const auto found = nodes.find(replay.op);
      const NodePtr node =
          found == nodes.end() ? nullptr : found->second.lock();
      if (node && !Again(*node, replay)) return false;
    }
    return true;
  }

  at::Tensor View(const at::Tensor& t, const Geometry& g) const {
    return LiesAs(t, g) ? t : t.as_strided(g.sizes, g.strides, g.offset);
  }
  at::Tensor ViewAlone(const at::Tensor& t, const Geometry& g) const {
    if (LiesAs(t, g)) return t;
    const Alone alone(gate_);
    return View(t, g);
  }

  // The forward is over: a cell that nobody has taken is let go with its
  // storage.
  void Sweep(bool all) {
    if (!all && ++since_sweep_ < kSweepEvery) return;
    since_sweep_ = 0;
    for (auto it = marks_.begin(); it != marks_.end();) {
      if (it->second.storage.expired()) {
        Bury(std::move(it->second.cell));
        it = marks_.erase(it);
      } else {
        ++it;
      }
    }
  }

  bool Holds(const void* storage) const { return leaves_.contains(storage); }
  bool HoldsAny() const { return !leaves_.empty(); }
  bool Waits() const {
    for (const auto& [storage, held] : leaves_) {
      for (const auto& weak : held) {
        const NodePtr node = weak.lock();
        if (node && !node->gone) return true;
      }
    }
    return false;
  }
  void Drop() {
    nodes.clear();
    leaves_.clear();
    for (auto& [storage, mark] : marks_) Bury(std::move(mark.cell));
    marks_.clear();
  }

  struct Marked {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    CellPtr cell;
  };
  const std::unordered_map<const void*, Marked>& marks() const {
    return marks_;
  }

  // Tensors in a value, in order; what is not there is left out.
  static void Flatten(const IValue& value, std::vector<at::Tensor>& to) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) to.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector())
        if (t.defined()) to.push_back(t);
    } else if (value.isList()) {
      for (const IValue& v : value.toListRef()) Flatten(v, to);
    }
  }

  std::unordered_map<int64_t, std::weak_ptr<Node>> nodes;

 private:
  static constexpr int kSweepEvery = 32;

  static bool CanShow(const IValue& v, bool lists) {
    if (v.isNone() || v.isTensor() || v.isInt() || v.isDouble() || v.isBool() ||
        v.isString() || v.isDevice() || v.isComplexDouble())
      return true;
    if (v.isIntList() || v.isDoubleList() || v.isBoolList() || v.isTensorList())
      return true;
    if (!lists || !v.isList()) return false;
    const auto items = v.toListRef();
    return std::all_of(items.begin(), items.end(),
                       [](const IValue& item) { return CanShow(item, false); });
  }

  static at::Device DeviceOf(const Stack& stack,
                             const c10::OperatorHandle& op) {
    const auto count = op.schema().arguments().size();
    std::vector<at::Tensor> found;
    for (auto v = stack.end() - static_cast<long>(count); v != stack.end(); ++v)
      Flatten(*v, found);
    if (!found.empty()) return found[0].device();
    for (auto v = stack.end() - static_cast<long>(count); v != stack.end(); ++v)
      if (v->isDevice()) return v->toDevice();
    return at::kCPU;
  }

  void Mark(const at::Tensor& t, CellPtr cell) {
    marks_.insert_or_assign(
        t.storage().unsafeGetStorageImpl(),
        Marked{t.storage().getWeakStorageImpl(), std::move(cell)});
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
        const auto waiting = std::move(found->second);
        leaves_.erase(found);
        for (const auto& weak : waiting) {
          const NodePtr node = weak.lock();
          if (!node) continue;
          for (Held& h : node->held) {
            if (!h.tensor.defined() ||
                h.tensor.storage().unsafeGetStorageImpl() != storage)
              continue;
            const Alone alone(gate_);
            h.tensor = h.tensor.detach().clone();
            h.stale = h.tensor._version();
          }
        }
      }
      if (CellPtr cell = CellOf(t)) targets.push_back(std::move(cell));
    }
    return targets;
  }

  NodePtr Recorded(const Special& row, int64_t number,
                   const c10::OperatorHandle& op, const Stack& stack,
                   const CellPtr& target) {
    auto node = std::make_shared<Node>(op);
    node->row = number;
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
      if (skips &&
          (argument == row.statistics || argument == row.statistics + 1))
        return;
      const int64_t planned =
          at < row.first_life_reads.size() ? row.first_life_reads[at] : -1;
      Held held;
      held.place = place;
      held.cell = CellOf(t);
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
        // Of the same type and length, with nothing in it.
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

  // The mask that is about to be drawn; marks a batch norm that has a shortcut.
  static at::Tensor PrepareShortcut(const Special& row,
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
      node.mean = *x;  // until its outputs are there
    return {};
  }

  bool Again(Node& node, const Replay& replay) {
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
        if (h.tensor._version() != h.stale) return false;  // Python raises
      } else if (!h.cell || !h.cell->tensor.defined() ||
                 h.cell->version != h.version) {
        return false;
      }
    }
    Stack stack = node.arguments;
    const auto put = [&](const Place& place, at::Tensor t) {
      IValue& v = stack[place.argument];
      if (place.item < 0) {
        v = IValue(std::move(t));
        return;
      }
      auto list = v.toList();
      list.set(static_cast<size_t>(place.item), IValue(std::move(t)));
    };
    // Lists are shared with the record: theirs are copied before they are
    // filled.
    for (IValue& v : stack) {
      if (v.isList() && !v.isIntList() && !v.isDoubleList() && !v.isBoolList())
        v = IValue(v.toList().copy());
    }
    for (const Own& o : node.own) put(o.place, View(own, o.geometry));
    for (const Held& h : node.held) {
      put(h.place,
          h.tensor.defined() ? h.tensor : View(h.cell->tensor, h.geometry));
    }
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
    std::vector<at::Tensor> made;
    Call(node, stack, made);
    ++replayed;
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

  static CellPtr OwnerOf(const Node& node) {
    if (node.outputs.size() != 1) return nullptr;
    CellPtr cell = node.outputs[0].lock();
    return cell && cell->chain[0].get() != &node ? cell : nullptr;
  }

  static void DoneWith(Node& node) {
    for (const auto& weak : node.outputs) {
      const CellPtr cell = weak.lock();
      // One of several outputs that it alone can make.
      if (cell && !cell->waiting.empty() && !cell->tensor.defined()) return;
    }
    node.Forget();
  }

  static void Call(const Node& node, Stack& stack,
                   std::vector<at::Tensor>& made) {
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
      made = {Normalized(x, optional(1), optional(2), node.mean, node.deviation,
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
    for (const IValue& v : stack) Flatten(v, made);
    stack.clear();
  }

  DispatchKey gate_;
  // Storage -> records that hold a tensor on it.
  std::unordered_map<const void*, std::vector<std::weak_ptr<Node>>> leaves_;
  std::unordered_map<const void*, Marked> marks_;
  int since_sweep_ = 0;
};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_FAST_RECORDS_H_
