// SPDX-License-Identifier: Apache-2.0
//
// What the tape remembers of a forward: the C++ counterparts of the classes in
// records.py.
//
//   Cell   a storage that the plan discards: the calls that made it, and its
//          recomputed copy while there is one
//   Node   a recorded call
//   Held   one tensor argument of a recorded call
//   Marks  which storage has which cell
//
// Ownership is as in records.py: autograd's references own the cells, cells own
// nodes, and nothing points back strongly. No Python object is touched here, so
// the GIL is not needed.
#ifndef REPRISE_TORCH_COMPILED_CELLS_H_
#define REPRISE_TORCH_COMPILED_CELLS_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace reprise_fast {
// The shape of a view: sizes, strides and storage offset, in elements.

using c10::IValue;
using Stack = std::vector<IValue>;

struct Geometry {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

// Returns whether `t` has exactly the sizes, strides and offset of `g`.
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

// The position of a tensor among a call's arguments: the argument's index, and
// its index within a list argument, or -1.
struct Place {
  size_t argument = 0;
  int64_t item = -1;
};

// One tensor argument of a recorded call: the tensor itself, its cell, or first
// the one and then the other. `stale` is the tensor's version counter when it
// was recorded, `reads` the number of replays that still read `tensor` (-1:
// unknown), and `version` and `geometry` say which state and which view of the
// cell the call reads. See records.Held.
struct Held {
  Place place;
  at::Tensor tensor;
  uint32_t stale = 0;
  int64_t reads = -1;
  CellPtr cell;
  int64_t version = 0;
  Geometry geometry;
};

// The argument that a call writes in place.
struct Own {
  Place place;
  Geometry geometry;
};

// Destroys a chain of records iteratively. Each record owns the next, so
// recursive destructors would overflow the stack after some thousands of them.
// Called by destructors, so it must not throw: if the list cannot grow, the
// cell is destroyed recursively.
inline void Bury(CellPtr cell) noexcept {
  thread_local std::vector<CellPtr> grave;
  thread_local bool busy = false;
  try {
    grave.push_back(std::move(cell));
  } catch (const std::bad_alloc&) {
    return;
  }
  if (busy) return;
  busy = true;
  while (!grave.empty()) {
    const CellPtr next = std::move(grave.back());
    grave.pop_back();
  }
  busy = false;
}
// One recorded call, which can run again.

struct Node {
  c10::OperatorHandle op;
  int64_t replays = 0;
  bool gone = false;     // its last planned replay has run
  bool fetches = false;  // brings a storage back from host memory
  bool grad = false;
  // The number of the state in which it ran (ambient.h).
  std::size_t around = 0;
  Stack arguments;  // empty values in place of tensors
  std::vector<Held> held;
  std::vector<Own> own;
  std::vector<std::weak_ptr<Cell>> outputs;
  // The state of the generator before the call, for a call that draws.
  at::Tensor state;
  std::optional<at::Generator> generator;
  // What a shortcut uses instead of the call: the statistics of a batch norm,
  // or the bits of a mask.
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
// One storage that the plan discards. `tensor` is its recomputed copy,
// `version` the number of calls of the chain that have run on the copy, and
// `uses` the planned uses that the copy still has.

struct Cell {
  int64_t id = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<NodePtr> chain;  // null: a call that is not recorded
  at::Tensor tensor;
  int64_t version = 0;
  int64_t uses = 0;
  std::map<int64_t, int64_t> waiting;  // readers still to come, by version

  // Counts one more (Wait) or one fewer (Waited) future reader of a version.
  void Wait(int64_t at) { ++waiting[at]; }
  void Waited(int64_t at) {
    const auto found = waiting.find(at);
    if (found != waiting.end() && --found->second == 0) waiting.erase(found);
  }
  // Returns whether the calls [first, end) of the chain can all run again.
  bool Recorded(int64_t first, int64_t end) const {
    for (int64_t i = first; i < end; ++i) {
      const Node* const node = chain[static_cast<size_t>(i)].get();
      if (node == nullptr || node->gone) return false;
    }
    return true;
  }
  // Returns whether every call of the chain was recorded.
  bool IsWhole() const {
    return std::find(chain.begin(), chain.end(), nullptr) == chain.end();
  }
  int64_t Length() const { return static_cast<int64_t>(chain.size()); }
  // Returns whether a future reader needs the copy and the recorded calls
  // cannot make that version again.
  bool OnlyWayBack() const {
    if (!tensor.defined() || waiting.empty()) return false;
    return !Recorded(0, std::min(Length(), waiting.rbegin()->first));
  }
  // Counts one planned use as done. After the last one the copy is released,
  // unless it cannot be recomputed.
  void Use() {
    --uses;
    if (uses <= 0 && !OnlyWayBack()) {
      tensor.reset();
      version = 0;
    }
  }
};

// Releases the arguments of a call that will not run again.
inline void Node::Forget() {
  for (const Held& h : held) {
    if (h.cell) h.cell->Waited(h.version);
  }
  gone = true;
  Clear();
}

// Maps a storage to its cell for as long as the storage lives.
class Marks {
 public:
  struct Mark {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    CellPtr cell;
  };

  // Returns the cell of the storage behind `t`, or null.
  CellPtr CellOf(const at::Tensor& t) const {
    if (marks_.empty() || !t.defined() || !t.has_storage()) return nullptr;
    const auto found = marks_.find(t.storage().unsafeGetStorageImpl());
    // The weak reference prevents the address from being reused.
    if (found == marks_.end() || found->second.storage.expired())
      return nullptr;
    return found->second.cell;
  }

  // Makes `cell` the cell of the storage of `t`, which was just created.
  void Put(const at::Tensor& t, CellPtr cell) {
    marks_.insert_or_assign(
        t.storage().unsafeGetStorageImpl(),
        Mark{t.storage().getWeakStorageImpl(), std::move(cell)});
  }

  // Removes the mapping of the storage of `t`.
  void Erase(const at::Tensor& t) {
    marks_.erase(t.storage().unsafeGetStorageImpl());
  }

  // Removes the cells of storages that are gone. Does so on every 32nd call, or
  // at once if `all` is true.
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

  // The step has ended: removes all cells.
  void Drop() {
    for (auto& [storage, mark] : marks_) Bury(std::move(mark.cell));
    marks_.clear();
  }

 private:
  static constexpr int kSweepEvery = 32;

  std::unordered_map<const void*, Mark> marks_;
  int since_sweep_ = 0;
};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_CELLS_H_
