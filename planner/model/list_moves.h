// SPDX-License-Identifier: Apache-2.0
//
// Changes of a list of execs that take several inserts or erasures.
#pragma once

#include <vector>

#include "planner/model/exec_list.h"

namespace reprise::planner {

// Removes a re-run and those that only fed it. `doomed` is scratch.
void DeleteWithFeeders(const Problem& problem, ExecList& list,
                       ExecList::Node rerun,
                       std::vector<ExecList::Node>& doomed);

// A re-run of an older version destroys the newer one, so that an op that reads
// the newer one later needs it recomputed: calls `remake(value, reader)` for
// each. Returns false as soon as that does, or if what was recomputed for one
// version removed the re-run.
template <typename RemakeBefore>
bool RemakeNewer(const Problem& problem, const ExecList& list,
                 ExecList::Node rerun, const RemakeBefore& remake) {
  const Versions& versions = problem.versions;
  const OpId op = list.OpOf(rerun);
  for (const ValueId v : versions.Make(op)) {
    if (!list.Has(rerun) || list.OpOf(rerun) != op) return false;
    const StorageId s = versions.storage[v];
    if (versions.Last(s) == versions.first_value[s]) continue;
    const std::vector<ExecList::Event>& events = list.Events(s);
    ValueId present = v;
    for (size_t i = list.FirstEventFrom(s, rerun) + 1; i < events.size(); ++i) {
      if (events[i].starts) break;
      if (events[i].need != kNoValue && events[i].need != present) {
        if (!remake(events[i].need, events[i].node)) return false;
        break;
      }
      present = events[i].After();
    }
  }
  return true;
}

// Recomputes before a re-run what it needs: `remake(value, before)` is called for
// each input that is absent, and for each that would stay longer for it although
// `costs(value, since)` says that this is not worth it; `since` is the input's
// last event. Returns false as soon as `remake` does, or if what was recomputed
// for one input removed the re-run.
template <typename Costs, typename RemakeBefore>
bool RemakeInputs(const Problem& problem, const ExecList& list,
                  ExecList::Node rerun, const Costs& costs,
                  const RemakeBefore& remake) {
  const OpId op = list.OpOf(rerun);
  const auto is_there = [&] {
    return list.Has(rerun) && list.OpOf(rerun) == op;
  };
  for (const ValueId u : problem.versions.Need(op)) {
    if (!is_there()) return false;
    const StorageId s = problem.versions.storage[u];
    const std::vector<ExecList::Event>& events = list.Events(s);
    const int32_t at = list.FirstEventFrom(s, rerun);
    const ExecList::Event previous = events[at - 1];
    bool wanted = previous.After() != u;
    if (!wanted) {
      const bool extended = at + 1 == static_cast<int32_t>(events.size()) ||
                            events[at + 1].starts;
      wanted = extended && problem.rules.may_remake[u] != 0 &&
               list.MayInsert(problem.versions.maker[u], rerun) &&
               costs(u, previous.node);
    }
    if (wanted && !remake(u, rerun)) return false;
  }
  return is_there() && RemakeNewer(problem, list, rerun, remake);
}

// Returns the node before which an op can run again for a reader: the reader,
// or, if the op may not run there, the last first run before it where it may;
// kNoOp if there is none.
ExecList::Node PlaceFor(const Problem& problem, const ExecList& list, OpId op,
                        ExecList::Node reader);

// Returns execs without dead re-runs, whose outputs are all made again, or the
// step ends, before any op reads them, and without those that only fed them.
// Constructions that run whole stretches again leave some. First runs stay.
// O(execs + arities).
std::vector<OpId> WithoutUnread(const Problem& problem,
                                const std::vector<OpId>& execs);

}  // namespace reprise::planner
