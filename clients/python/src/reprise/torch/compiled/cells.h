// SPDX-License-Identifier: Apache-2.0
//
// What the tape remembers of a forward, without Python: the classes of
// records.py.
//
//   Cell   a storage that is given up: the calls that made it, its copy
//   Node   a recorded call; Held: one of its tensors
//
// Owners are as in records.py: from autograd's side, nothing points back
// strongly. No Python object is touched here, and no interpreter's lock is
// needed.
#ifndef REPRISE_TORCH_COMPILED_CELLS_H_
#define REPRISE_TORCH_COMPILED_CELLS_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace reprise_fast {

using c10::IValue;
using Stack = std::vector<IValue>;

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
// thousands of destructors inside each other would end the stack. Called by
// destructors: where there is no room for one more, that one goes here.
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

struct Node {
  c10::OperatorHandle op;
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

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_CELLS_H_
