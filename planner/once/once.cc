// SPDX-License-Identifier: Apache-2.0
#include "planner/once/once.h"

#include <algorithm>

#include "base/str_cat.h"
#include "planner/model/list_moves.h"

namespace reprise::planner {
namespace {

// Walks over the step and makes again what is needed.
class Replay {
 public:
  Replay(const Problem& problem, const SavedSet& saved)
      : problem_(problem),
        saved_(saved),
        present_(problem.bytes.size(), kNoValue),
        wanted_(problem.op_count, 0) {}

  // Returns the execs of the step, or nothing if the set cannot be run.
  std::vector<OpId> Run() {
    for (OpId o = 0; o < problem_.first_backward; ++o) Exec(o);
    for (StorageId s = 0; s < static_cast<StorageId>(present_.size()); ++s) {
      may_drop_.push_back(MayDrop(s));
      if (may_drop_[s] && saved_[s] == 0) present_[s] = kNoValue;
    }
    for (OpId o = problem_.first_backward; o < problem_.op_count; ++o) {
      const auto need = problem_.versions.Need(o);
      for (const ValueId v : need) {
        if (IsMissing(v) && !Restore(v, need)) return {};
      }
      Exec(o);
    }
    for (const ValueId v : problem_.end_need) {
      if (IsMissing(v)) return {};
    }
    return WithoutUnread(problem_, execs_);
  }

 private:
  // Returns whether a storage does not hold this value.
  bool IsMissing(ValueId v) const {
    return present_[problem_.versions.storage[v]] != v;
  }

  // Returns whether the executor may discard what the forward leaves of a
  // storage.
  bool MayDrop(StorageId s) const {
    // What the program holds into the backward stays.
    const OpId held = problem_.rules.held_until[s];
    return present_[s] != kNoValue &&
           problem_.rules.may_remake[present_[s]] != 0 &&
           (held == kNoOp || held < problem_.first_backward);
  }

  void Exec(OpId o) {
    execs_.push_back(o);
    for (const ValueId v : problem_.versions.Make(o)) {
      present_[problem_.versions.storage[v]] = v;
    }
  }

  // Makes what the forward makes of `need`, `v` among it, and what that needs, in
  // base order. Returns false if that is impossible.
  bool Restore(ValueId v, std::span<const ValueId> need) {
    const Versions& versions = problem_.versions;
    if (versions.maker[v] >= problem_.first_backward ||
        !may_drop_[versions.storage[v]]) {
      return false;
    }
    bool possible = true;
    std::vector<OpId> again;
    const auto want = [&](ValueId u) {
      const OpId maker = versions.maker[u];
      if (!IsMissing(u)) return;
      if (maker >= problem_.first_backward ||
          problem_.rules.may_rerun[maker] == 0) {
        possible = false;
      } else if (wanted_[maker] == 0) {
        wanted_[maker] = 1;
        again.push_back(maker);
      }
    };
    for (const ValueId u : need) {
      if (versions.maker[u] < problem_.first_backward) want(u);
    }
    for (size_t i = 0; i < again.size(); ++i) {
      for (const ValueId u : versions.Need(again[i])) want(u);
    }
    std::sort(again.begin(), again.end());
    for (const OpId o : again) {
      wanted_[o] = 0;
      if (possible) Exec(o);
    }
    return possible && !IsMissing(v);
  }

  const Problem& problem_;
  const SavedSet& saved_;
  std::vector<ValueId> present_;  // by storage
  std::vector<uint8_t> may_drop_;
  std::vector<uint8_t> wanted_;  // by op: scratch of Restore
  std::vector<OpId> execs_;
};

}  // namespace

std::vector<OpId> OnceExecs(const Problem& problem, const SavedSet& saved) {
  return Replay(problem, saved).Run();
}

SavedSet SavedIn(const Problem& problem, std::span<const OpId> execs) {
  // From the last exec to the first: whether what comes next is a read.
  const Versions& versions = problem.versions;
  SavedSet read(problem.bytes.size(), 0);
  for (const ValueId v : problem.end_need) read[versions.storage[v]] = 1;
  for (size_t i = execs.size(); i-- > size_t(problem.first_backward);) {
    for (const ValueId v : versions.Make(execs[i])) {
      read[versions.storage[v]] = 0;
    }
    for (const ValueId v : versions.Need(execs[i])) {
      read[versions.storage[v]] = 1;
    }
  }
  return read;
}

StatusOr<Evaluation> EvaluateOnce(const Problem& problem,
                                  std::span<const Entry> schedule) {
  ASSIGN_OR_RETURN(const Evaluation evaluation,
                   Evaluate(*problem.graph, schedule, problem.capabilities));
  const std::vector<OpId> execs = ExecsOf(schedule);
  const std::vector<OpId> runs = OnceExecs(problem, SavedIn(problem, execs));
  for (size_t i = 0; i < std::max(execs.size(), runs.size()); ++i) {
    if (i < execs.size() && i < runs.size() && execs[i] == runs[i]) continue;
    const auto op = [i](const std::vector<OpId>& all) {
      return i < all.size() ? StrCat("op ", all[i]) : std::string("nothing");
    };
    return InvalidArgument(
        runs.empty()
            ? std::string("schedule: the executor cannot run what it saves")
            : StrCat("schedule: run ", i, " is ", op(execs),
                     " where the executor, which runs an op again just before "
                     "its first reader in the backward, runs ",
                     op(runs)));
  }
  return evaluation;
}

}  // namespace reprise::planner
