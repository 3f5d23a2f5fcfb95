// SPDX-License-Identifier: Apache-2.0
//
// Schedules that decide once per block, for steps of hundreds of equal blocks.
//
// At a price per byte a minimum cut decides for every block alike, up to a
// millionth of noise in their times: below the right price it keeps too much,
// above it nothing. In between lies a *count*: of n equal ops, m are run again,
// where m mixes the two cuts so that the budget is just used (a knapsack over
// identical items). Which m of them is free for cost and bytes, but not for the
// re-runs: m in a row are one long burst with all its memory, m spread evenly
// are many short ones.
//
//   instance       0 1 2 3 4 5 6 7 8 9
//   cut            . . . . . R R R R R
//   spread         . R . R . R . R . R
//
// Instances are chosen in the order of the golden ratio's multiples, so that
// the fewer are among the more: ops of one block that run again equally often
// do so in the same instances.
//
// What the bursts need on top is found by evaluation: the room given to the
// cut is lowered by what the schedule exceeds the budget; and where a whole run
// would be one burst, what leaves every 16th, 8th, ... instance is saved by all
// means and the cut decides the rest. So is, as a second try, what is read
// behind its run: made again for the backward of its reader, it would stay to
// that of its maker. Then *block moves*:
// an op is run again in more or fewer of the instances of its block, in all of
// them or in one stretch of them, two ops trade, or what is made again is kept
// for all its readers or made for each. One Generate per move, so a move costs
// O(execs) whatever it changes.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "planner/bounds/certificate.h"
#include "planner/construct/blocks.h"
#include "planner/model/archive.h"
#include "planner/model/effort.h"
#include "planner/model/flags.h"
#include "planner/model/random.h"
#include "planner/model/score.h"

namespace reprise::planner {

// Ops of the forward that stand for each other, and how many of them run again
// after the window, stretch by stretch of instances. Ops that change the same
// storage one after the other are decided together: an older version cannot be
// made again beside a newer one.
struct BlockClass {
  std::vector<OpId> first = {};  // of the first instance
  OpId run_begin = 0;
  int32_t period = 0;
  int32_t count = 0;
  std::vector<int32_t> again = {};  // by stretch
  bool keeps_for_all = true;        // `share`, else `again`
  bool keeps_tail = false;          // what only re-runs read, where it is saved

  int32_t stretches() const { return static_cast<int32_t>(again.size()); }
  int32_t StretchBegin(int32_t i) const {
    return static_cast<int32_t>(int64_t{count} * i / stretches());
  }
};

class BlockPlan {
 public:
  // Classes are the ops before `at` that repeat.
  BlockPlan(const Problem& problem, const Blocks& blocks, OpId at);

  bool empty() const { return classes_.empty(); }
  const std::vector<BlockClass>& classes() const { return classes_; }

  // The flags of the counts as they are.
  Flags MakeFlags() const;

  // Schedules of spread cuts, with ever shorter segments, until they fit the
  // budget and get no better. The counts are then those of the best.
  void Fit(int64_t budget_bytes, Certificate& certificate, Generator& generator,
           Archive& archive, Effort& effort);
  // Block moves from the counts as they are, in ever shorter stretches of
  // instances; never ends with worse ones.
  void Improve(const Score& score, uint64_t seed, int64_t ticks,
               int64_t good_enough_ns, Generator& generator, Archive& archive,
               Effort& effort);

 private:
  // What the decisions were at their best.
  struct Best {
    int64_t score = Score::kWorst;
    std::vector<BlockClass> classes = {};
    Flags single_flags = {};
  };

  // Takes the counts from the cuts of a window: a mixture of a cut that fits
  // the room and, where there is one, of a cheaper one that does not.
  void TakeCounts(const WindowResult& cuts);
  // Lowers the room until the schedule fits.
  void FitSaving(const std::vector<ValueId>& saved, const Score& score,
                 Certificate& certificate, Generator& generator,
                 Archive& archive, Effort& effort, Best& best);
  // Halves the stretches.
  void Refine();
  void Anneal(const Score& score, Random& random, int64_t ticks, int hot,
              int64_t good_enough_ns, Generator& generator, Archive& archive,
              Effort& effort);
  // Whether the forward pass reads a value at `op` or later.
  bool InForwardFrom(OpId op, ValueId v) const;
  // What leaves one in so many instances.
  std::vector<ValueId> SegmentEnds(int length) const;
  // What is read behind its run: skips of a U-Net.
  std::vector<ValueId> LongSkips() const;
  void AddRanks(int32_t count);
  void AddRun(const BlockRun& run);
  void SetFlags(const BlockClass& c, Flags& flags) const;

  const Problem& problem_;
  const OpId at_;
  std::vector<BlockClass> classes_;
  // By number of instances: the place of each in the order they are chosen.
  std::map<int32_t, std::vector<int32_t>> ranks_;
  std::vector<int32_t> class_of_;  // by op; -1: none
  Flags single_flags_;             // what the cut says about ops in no class
};

}  // namespace reprise::planner
