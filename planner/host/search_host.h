// SPDX-License-Identifier: Apache-2.0
//
// The search for schedules that use host memory. A state is a list of execs, as
// in the search without (exec_list.h); where its copies go follows from it
// (place_copies.h), so what a step changes is what runs again: a re-run goes and
// its values stay or move to the host, or a value is made again and leaves the
// host. Simulated annealing at low temperatures, since it starts from plans of
// the other search. Before it, a repair: at tight budgets copies alone lack the
// few small storages that are not worth a copy, or must not have one.
//
// Every state is placed and evaluated from scratch.
#pragma once

#include <functional>
#include <vector>

#include "planner/host/place_copies.h"
#include "planner/model/effort.h"
#include "planner/model/problem.h"
#include "planner/model/random.h"
#include "planner/model/score.h"

namespace reprise::planner {

class HostSearch {
 public:
  HostSearch(const Problem& problem, int64_t budget_bytes, uint64_t seed,
             Effort& effort)
      : problem_(problem),
        budget_bytes_(budget_bytes),
        score_(ScoreOf(problem, budget_bytes)),
        random_(seed),
        effort_(effort),
        has_whole_(HasWhole(*problem.graph)) {}

  // Places the copies of these execs. Returns the score (score.h), and keeps the
  // schedule if it is the best so far.
  int64_t Try(const std::vector<OpId>& execs);
  // Where the best schedule exceeds the budget: makes again what is present at its
  // peak and can neither leave for the host nor is used there, as long as that
  // helps, cheapest first, for so many ticks. One placement per try.
  void Repair(int64_t ticks);
  // Anneals from the best schedule for so many ticks; stops at `enough_ns`.
  void Improve(int64_t ticks, int64_t enough_ns);

  // The best schedule; empty: none is valid.
  const Schedule& best() const { return best_; }
  const Evaluation& evaluation() const { return evaluation_; }
  bool Fits() const {
    return !best_.empty() && evaluation_.peak_bytes <= budget_bytes_;
  }

 private:
  struct Placed {
    Schedule schedule;  // empty: not valid
    Evaluation evaluation;
  };
  Placed Place(const std::vector<OpId>& execs, bool whole_last);
  // The one of the ways to place them that needs least memory.
  Placed PlaceTight(const std::vector<OpId>& execs);
  int64_t Keep(Placed placed, const std::vector<OpId>& execs);
  // Changes a list of execs at random; false: nothing to change was found.
  bool Change(std::vector<OpId>& execs);
  // Removes a few re-runs in a row.
  bool Remove(std::vector<OpId>& execs);
  // Makes a value again before one of its readers, with some of what it needs.
  bool Remake(std::vector<OpId>& execs);
  // `also`: whether to make an input of this storage again as well.
  bool RemakeBefore(std::vector<OpId>& execs, size_t reader, ValueId wanted,
                    const std::function<bool(StorageId)>& also);
  // A value that is present at the peak of a schedule and not used there.
  struct Idle {
    ValueId value;
    size_t reader;  // the exec that reads it next ...
    int32_t entry;  // ... and where that is in the schedule
  };
  // Cheapest first, per byte that is above the budget.
  std::vector<Idle> IdleAtPeak(const Placed& placed,
                               const std::vector<Lifetime>& lives) const;

  const Problem& problem_;
  const int64_t budget_bytes_;
  const Score score_;
  Random random_;
  Effort& effort_;
  const bool has_whole_;
  Schedule best_;
  Evaluation evaluation_;
  std::vector<OpId> best_execs_;
  int64_t best_score_ = Score::kWorst;
};

}  // namespace reprise::planner
