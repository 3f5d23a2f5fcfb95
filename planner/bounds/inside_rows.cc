// SPDX-License-Identifier: Apache-2.0
//
// Memory inside segments: adds the (inside) rows of many_windows.h that a
// solution violates.
#include <cassert>
#include <span>
#include <utility>
#include <vector>

#include "planner/bounds/many_windows.h"

namespace reprise::planner {

int64_t ManyWindows::MarkStorages(OpId o, std::vector<uint8_t>& marked) const {
  const Versions& versions = problem_.versions;
  marked.assign(problem_.bytes.size(), 0);
  int64_t bytes = problem_.workspace[o];
  const auto mark = [&](std::span<const ValueId> values) {
    for (const ValueId v : values) {
      const StorageId s = versions.storage[v];
      if (marked[s] == 0) bytes += problem_.bytes[s];
      marked[s] = 1;
    }
  };
  mark(versions.Need(o));
  mark(versions.Make(o));
  return bytes;
}

bool ManyWindows::MayStay(int k, ValueId v) const {
  const Window& window = windows_[k];
  const Window& next = windows_[k + 1];
  const OpId maker = problem_.versions.maker[v];
  if (maker != window.at && maker > window.at) return false;
  if (next.saved[v] < 0 && next.forced[v] == 0) return false;
  // AddColumns added a column for every maker that could bring v back.
  assert(!problem_.rules.may_remake[v] || !window.may_rerun ||
         problem_.BytesOf(v) == 0 || window.again[maker] >= 0);
  return problem_.BytesOf(v) > 0;
}

bool ManyWindows::AddInsideRow(int k, OpId o) {
  Window& window = windows_[k];
  const Window& next = windows_[k + 1];
  const bool first = o > window.at && o < window.next;
  if ((!first && window.again[o] < 0) || window.inside[o] != 0) return false;
  window.inside[o] = 1;
  std::vector<uint8_t> marked;
  const int64_t bytes = MarkStorages(o, marked);
  int64_t room = inside_bytes_ - (first ? bytes : 0);
  std::vector<std::pair<int32_t, double>> entries;
  for (ValueId v = 0; v < problem_.versions.value_count(); ++v) {
    if (marked[problem_.versions.storage[v]] != 0 || !MayStay(k, v)) continue;
    const int32_t rerun = problem_.rules.may_remake[v] && window.may_rerun
                              ? window.again[problem_.versions.maker[v]]
                              : -1;
    int32_t column = next.saved[v];
    if (rerun < 0 && column < 0) {
      room -= problem_.BytesOf(v);
      continue;
    }
    if (rerun >= 0) {
      if (window.stays[v] < 0) {
        window.stays[v] = program_.AddColumn(0, 0, 1, /*whole=*/false);
        program_.AddEntry(window.stays[v], 1);
        program_.AddEntry(rerun, 1);
        if (column >= 0) program_.AddEntry(column, -1);
        program_.CloseRow(column >= 0 ? 0 : 1, kMipInfinity);
      }
      column = window.stays[v];
    }
    entries.emplace_back(
        column, static_cast<double>(problem_.BytesOf(v)) * byte_scale_);
  }
  for (const auto& [column, value] : entries) program_.AddEntry(column, value);
  if (!first) {
    program_.AddEntry(window.again[o],
                      static_cast<double>(bytes) * byte_scale_);
  }
  // Plus half a byte and the solver's tolerance, as in (memory).
  const double upper = static_cast<double>(room) + 0.5 +
                       static_cast<double>(inside_bytes_) * 1e-9;
  program_.CloseRow(-kMipInfinity, upper * byte_scale_);
  return true;
}

bool ManyWindows::Violates(int k, OpId o,
                           const std::vector<double>& solution) const {
  const Window& window = windows_[k];
  const Window& next = windows_[k + 1];
  const auto is_one = [&](int32_t column) {
    return column >= 0 && solution[column] > 0.5;
  };
  const bool first = o > window.at && o < window.next;
  if (window.inside[o] != 0 || (!first && !is_one(window.again[o]))) {
    return false;
  }
  std::vector<uint8_t> marked;
  int64_t bytes = MarkStorages(o, marked);
  for (ValueId v = 0; v < problem_.versions.value_count(); ++v) {
    if (marked[problem_.versions.storage[v]] != 0 || !MayStay(k, v)) continue;
    const bool there = next.forced[v] != 0 || is_one(next.saved[v]);
    const bool remade = problem_.rules.may_remake[v] &&
                        is_one(window.again[problem_.versions.maker[v]]);
    if (there && !remade) bytes += problem_.BytesOf(v);
  }
  return bytes > inside_bytes_;
}

int ManyWindows::AddInsideRows(const std::vector<double>* solution) {
  if (out_of_room_ || !inside_) return 0;
  const int segments = static_cast<int>(windows_.size()) - 1;
  for (int k = 0; k < segments; ++k) {
    windows_[k].stays.resize(problem_.versions.value_count(), -1);
    windows_[k].inside.resize(problem_.op_count, 0);
  }
  int added = 0;
  for (OpId o = 0; o < problem_.op_count; ++o) {
    bool wanted = solution == nullptr;
    for (int k = 0; k < segments && !wanted; ++k) {
      wanted = Violates(k, o, *solution);
    }
    for (int k = 0; k < segments && wanted; ++k) added += AddInsideRow(k, o);
  }
  return added;
}

}  // namespace reprise::planner
