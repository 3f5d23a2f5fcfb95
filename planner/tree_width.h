// SPDX-License-Identifier: Apache-2.0
//
// Schedules by taking the graph apart: memory O(width * log n) for any graph of
// small tree width (Kumar, Purohit, Svitkina, Vee, Wang, Efficient
// rematerialization for deep networks, NeurIPS 2019).
//
// make(part, goals), with all that leads into the part from outside present:
//
//   run what the goals need in base order, if that fits
//   else, for the members z of the part's separator that they need, in base
//   order:
//     make what z reads, inside the parts below; run z; hold what it makes
//   make the goals in each part below; release the separator
//
// A separator is a bag of a tree decomposition (tree_decomposition.h), so the
// parts below are half as large, depend on each other through it alone, and at
// most log n separators are held at once. A chain with its backward has width
// 2: any length of it needs O(log n) values. The paper always goes down to
// single ops and saves time afterwards; here a part that fits runs as it is,
// and what could have stayed is held by HoldMore (construct.h), the paper's
// filter.
//
// First runs are goals too: those before z come before it, so that most come in
// base order; InBaseOrder (squeeze.h) mends the rest. Values that may not be
// made again are held once they are there.
//
// O(execs * log n) ticks after the decomposition. The number of execs is
// polynomial in n for a fixed width, with the width in the exponent: graphs of
// large width end with the execs allowed.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/effort.h"
#include "planner/problem.h"
#include "planner/tree_decomposition.h"

namespace reprise::planner {

struct TreeWidthOptions {
  int64_t budget_bytes = 0;
  // What fits in this percentage of the budget less static memory runs as it
  // is; 0: everything is taken apart.
  int fits_percent = 100;
  int most_execs_per_op = 60;
  int64_t most_ticks = 0;  // 0: as the effort allows
};

// Whether the recursion can state the problem: as for pebblings, re-runs come
// anywhere and as often as they like, and storages have one version.
bool TreeWidthApplies(const Problem& problem);

// Ops are neighbours where one reads what the other makes.
Parts PartsOf(const Problem& problem, int64_t most_ticks, Effort& effort);

// The execs of a schedule in base order, or nothing where there are too many.
// It may exceed the budget: the evaluator has the last word.
std::vector<OpId> TreeWidthExecs(const Problem& problem, const Parts& parts,
                                 const TreeWidthOptions& options,
                                 Effort& effort);

}  // namespace reprise::planner
