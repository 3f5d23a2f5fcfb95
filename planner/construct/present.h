// SPDX-License-Identifier: Apache-2.0
//
// What is present while a schedule is constructed: the value of each storage,
// the bytes in total, and what may be freed. Everything but Drop is O(1); GapOf
// is amortised O(1) as long as the base op asked about only rises.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

class Present {
 public:
  explicit Present(const Problem& problem);

  bool Has(ValueId v) const {
    return value_[problem_->versions.storage[v]] == v;
  }
  // Returns the value that a storage holds; kNoValue if it is absent.
  ValueId At(StorageId s) const { return value_[s]; }
  int64_t bytes() const { return bytes_; }
  const std::vector<StorageId>& storages() const { return storages_; }

  // O(storages present).
  void Drop(StorageId s);
  // Makes the outputs of `op` present.
  void Run(OpId op);

  // Returns the flag of the gap that a present value is in before base op `at`.
  int32_t GapOf(ValueId v, OpId at);
  // Returns whether the program would allow freeing the storage before base op
  // `at`.
  bool MayDrop(StorageId s, OpId at);

 private:
  const Problem* problem_;
  std::vector<ValueId> value_;  // by storage; kNoValue where absent
  std::vector<uint8_t> first_life_;
  std::vector<int32_t> next_use_;  // by value: uses before the current op
  std::vector<StorageId> storages_;
  int64_t bytes_;
};

}  // namespace reprise::planner
