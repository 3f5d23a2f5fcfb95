// SPDX-License-Identifier: Apache-2.0
//
// Schedules that decide once per block, for steps with hundreds of equal
// blocks.
//
// At a price per byte, a minimum cut decides the same for all equal blocks, up
// to a millionth of noise in their times: below the right price it keeps too
// much, above it nothing. In between there is a *count*: of n equal ops, m are
// run again, where m mixes the two cuts so that the budget is just used up (a
// knapsack over identical items). Which m of them makes no difference to cost
// and bytes, but it does to the re-runs: m in a row are one long burst with all
// its memory, m spread evenly are many short bursts.
//
//   instance       0 1 2 3 4 5 6 7 8 9
//   cut            . . . . . R R R R R
//   spread         . R . R . R . R . R
//
// Instances are chosen in the order of multiples of the golden ratio, so that a
// smaller count is a subset of a larger one: ops of one block with equal counts
// run again in the same instances.
//
// The memory that bursts need in addition is found by evaluation: the room
// given to the cut is reduced by the excess of the schedule over the budget. If
// a whole run would be one burst, the values that leave every 16th, 8th, ...
// instance are always saved, and the cut decides the rest. A second try also
// saves the values that are read after their run: recomputed for the backward
// of their reader, they would stay until that of their maker. Then come *block
// moves*: an op is run again in more or fewer instances of its block, in all of
// them or in one stretch of them; two ops trade; or a recomputed value is kept
// for all its readers instead of recomputed for each. Each move needs one
// Generate, so it costs O(execs) whatever it changes.
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

// Ops of the forward that correspond to each other, and how many of them run
// again after the window, stretch by stretch of instances. Ops that mutate the
// same storage one after the other are decided together, because an older
// version cannot be recomputed while a newer one is present.
struct BlockClass {
  std::vector<OpId> first = {};  // ops of the first instance
  OpId run_begin = 0;
  int32_t period = 0;
  int32_t count = 0;
  std::vector<int32_t> again = {};  // by stretch
  bool keeps_for_all = true;        // `share`, else `again`
  bool keeps_tail = false;  // keep what only re-runs read, if it is saved

  int32_t stretches() const { return static_cast<int32_t>(again.size()); }
  // Returns the first instance of a stretch.
  int32_t StretchBegin(int32_t i) const {
    return static_cast<int32_t>(int64_t{count} * i / stretches());
  }
};

class BlockPlan {
 public:
  // The classes are the repeated ops before `at`.
  BlockPlan(const Problem& problem, const Blocks& blocks, OpId at);

  // True if nothing repeats.
  bool empty() const { return classes_.empty(); }
  const std::vector<BlockClass>& classes() const { return classes_; }

  // Returns the flags of the current counts.
  Flags MakeFlags() const;

  // Adds schedules of spread cuts with ever shorter segments, until they fit
  // the budget and stop improving. The counts are then those of the best
  // schedule.
  void Fit(int64_t budget_bytes, Certificate& certificate, Generator& generator,
           Archive& archive, Effort& effort);
  // Makes block moves from the current counts, in ever shorter stretches of
  // instances. Never ends with worse counts. If not `patient`, ends early if it
  // does not soon beat the archive's best schedule.
  void Improve(const Score& score, uint64_t seed, int64_t ticks, bool patient,
               int64_t good_enough_ns, Generator& generator, Archive& archive,
               Effort& effort);

 private:
  // The best decisions so far.
  struct Best {
    int64_t score = Score::kWorst;
    std::vector<BlockClass> classes = {};
    Flags single_flags = {};
  };

  // Sets the counts from the cuts of a window: a mixture of a cut that fits the
  // room and, if there is one, a cheaper cut that does not.
  void TakeCounts(const WindowResult& cuts);
  // Reduces the room until the schedule fits.
  void FitSaving(const std::vector<ValueId>& saved, const Score& score,
                 Certificate& certificate, Generator& generator,
                 Archive& archive, Effort& effort, Best& best);
  // Halves the stretches.
  void Refine();
  // Anneals the counts by block moves, from 2^-hot of the base time on. Returns
  // whether it beat the start and the archive's best schedule.
  bool Anneal(const Score& score, Random& random, int64_t ticks, int hot,
              bool patient, int64_t good_enough_ns, Generator& generator,
              Archive& archive, Effort& effort);
  // Adds the values an op makes that the forward reads at `end` or later.
  void AddLong(OpId op, OpId end, std::vector<ValueId>& values) const;
  // Returns the values that leave every `length`-th instance.
  std::vector<ValueId> SegmentEnds(int length) const;
  // Returns the values that are read after their run, such as the skips of a
  // U-Net.
  std::vector<ValueId> LongSkips() const;
  // Computes the order of choice for runs of `count` instances.
  void AddRanks(int32_t count);
  // Adds the classes of a run.
  void AddRun(const BlockRun& run);
  // Sets the flags of a class's ops from its counts.
  void SetFlags(const BlockClass& c, Flags& flags) const;

  const Problem& problem_;
  const OpId at_;
  std::vector<BlockClass> classes_;
  // By number of instances: the rank of each in the order of choice.
  std::map<int32_t, std::vector<int32_t>> ranks_;
  std::vector<int32_t> class_of_;  // by op; -1: none
  Flags single_flags_;             // what the cut says about ops in no class
};

}  // namespace reprise::planner
