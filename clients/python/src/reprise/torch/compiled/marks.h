// SPDX-License-Identifier: Apache-2.0
//
// Maps a storage to its cell for as long as the storage lives.
#ifndef REPRISE_TORCH_COMPILED_MARKS_H_
#define REPRISE_TORCH_COMPILED_MARKS_H_

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <utility>

#include "cells.h"

namespace reprise_fast {

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

#endif  // REPRISE_TORCH_COMPILED_MARKS_H_
