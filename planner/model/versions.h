// SPDX-License-Identifier: Apache-2.0
//
// Versions: the walk over the base order that determines what every op needs.
//
// A *value* is one version of one storage. Values are numbered storage by
// storage, s@1, s@2, ..., so that the values of a storage are consecutive:
//
//   storage   0        1    2
//   value     0  1  2  3    4  5      storage 0 has three versions
//
// Writers make version 1; an op that mutates a storage needs version i, makes
// version i+1 and destroys version i. Flat arrays; O(ops + arities).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/model/step_graph.h"

namespace reprise::planner {

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

struct Versions {
  // By storage: its first value; one more entry at the end.
  std::vector<ValueId> first_value;
  // By value.
  std::vector<StorageId> storage;
  std::vector<OpId> maker;
  // Op o needs the values need[need_begin[o] .. need_begin[o + 1]); likewise
  // for what it makes: its writes, then what it leaves in mutated storages.
  std::vector<int32_t> need_begin, make_begin;
  std::vector<ValueId> need, make;

  int value_count() const { return static_cast<int>(storage.size()); }
  int op_count() const { return static_cast<int>(need_begin.size()) - 1; }
  // Returns the version number of a value, from 1.
  int32_t Number(ValueId value) const {
    return value - first_value[storage[value]] + 1;
  }
  // Returns the last version of a storage.
  ValueId Last(StorageId s) const { return first_value[s + 1] - 1; }
  // Returns whether a value is the first version of its storage.
  bool IsFirst(ValueId value) const {
    return first_value[storage[value]] == value;
  }
  std::span<const ValueId> Need(OpId o) const {
    return {need.data() + need_begin[o], need.data() + need_begin[o + 1]};
  }
  std::span<const ValueId> Make(OpId o) const {
    return {make.data() + make_begin[o], make.data() + make_begin[o + 1]};
  }
};

// Walks a valid graph. O(ops + arities).
Versions WalkVersions(const StepGraph& graph);

}  // namespace reprise::planner
