// SPDX-License-Identifier: Apache-2.0
//
// Reads the columns of a chunk, of which some may be shorter than others.
#pragma once

#include <type_traits>

namespace reprise::server {

// The cell of a row in a repeated field; 0 where the column ends before it.
template <typename List>
auto CellOf(const List& list, int row) -> std::decay_t<decltype(list.Get(0))> {
  return row < list.size() ? list.Get(row) : 0;
}

}  // namespace reprise::server
