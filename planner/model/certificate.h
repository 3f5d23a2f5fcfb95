// SPDX-License-Identifier: Apache-2.0
//
// A certificate: what a search claims about one budget, and everything that a
// second program needs to verify the claim on its own (verify.h). Plain data.
// Certificates are small, because the verifier rebuilds everything else from
// the step graph.
//
// There are two claims. A *bound*: every schedule in base order within
// `budget_bytes` adds at least `added_ns`. A *refusal*: no schedule in base
// order fits in less than `least_bytes`.
//
// The methods of proof follow. *Values* are the versions of storages, numbered
// storage by storage: those of storage 0 in order, then those of storage 1.
//
//   kWorkingSet  refusal. at[0]: what the op needs, makes and uses is present
//                while it runs
//   kChain       refusal. at[0]: every way back from the op's inputs to the
//                empty set needs this much somewhere (chain.h)
//   kWindow      bound or refusal. at[0]: minimum cuts (window.h). One leaf; it
//                has the price of a byte. Where the executor has a link to
//                host memory, its multipliers are the prices of (out j): row j;
//                (in k): row op_count + k; (host): row 2 op_count + 1; all
//                count 2^-(shift + byte_shift)
//   kWindows     bound or refusal. at[]: a program of several windows
//                (program.h). A tree that branches on its columns: 1 or 0; each
//                leaf has a vector of row multipliers, and so has a narrowing
//                node, which fixes the columns whose other value would add at
//                least the claimed time (domain.h)
//   kNested      bound. at[]: minimum cuts of several windows at once
//                (window.h), ascending. One leaf; its multipliers are the price
//                of a byte by window
//
// A tree is a list of nodes in preorder: an inner node names the column that it
// branches on; the node of 1 follows, then that of 0. What a narrowing node
// fixes applies to the one node that follows it.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/step_graph.h"

namespace reprise::verify {

using planner::OpId;
using planner::StorageId;

enum class Method : uint8_t {
  kNone,
  kWorkingSet,
  kChain,
  kWindow,
  kWindows,
  kNested,
};

// What the plan's executor can do, as far as claims depend on it.
struct Executor {
  int max_runs = 0;  // runs per op, including the first; 0: no limit
  bool recompute_in_backward_only = false;
  bool seeded_ok = false;
  bool collective_ok = false;
  bool duplicate_outputs = false;
  bool program_frees = false;  // first lives last to release_op
  int64_t ns_per_op = 0;       // added to the time of every re-run
  planner::Link link = {};     // to host memory

  friend bool operator==(const Executor&, const Executor&) = default;
};

// A row of a program with its multiplier; of nested windows, the number of one.
struct Multiplier {
  int32_t row = 0;
  int64_t value = 0;  // / 2^shift of its leaf

  friend bool operator==(const Multiplier&, const Multiplier&) = default;
};

struct Node {
  int32_t branch = -1;  // a column; -1: a leaf, or narrows
  bool narrows = false;
  // Scale of the multipliers: those of (memory) and (inside) rows count
  // 2^-(shift + byte_shift) ns per byte, those of other rows 2^-shift ns.
  int shift = 0;
  int byte_shift = 0;
  // Claims that the rows have no solution here: times are taken as 0.
  bool impossible = false;
  int64_t price = 0;  // kWindow: a byte costs price / 2^(shift + byte_shift) ns
  std::vector<Multiplier> multipliers = {};  // kWindows, kNested, and a link

  friend bool operator==(const Node&, const Node&) = default;
};

// A row for the memory while `op` runs in the segment after window k.
struct InsideRow {
  int32_t segment = 0;
  OpId op = 0;

  friend bool operator==(const InsideRow&, const InsideRow&) = default;
};

struct Certificate {
  Method method = Method::kNone;
  bool refuses = false;
  int64_t budget_bytes = 0;
  int64_t added_ns = 0;     // of a bound
  int64_t least_bytes = 0;  // of a refusal
  std::vector<OpId> at = {};
  bool inside = false;  // kWindows: includes memory inside segments
  std::vector<InsideRow> inside_rows = {};
  std::vector<Node> tree = {};
};

}  // namespace reprise::verify
