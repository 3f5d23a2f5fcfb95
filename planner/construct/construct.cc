// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/construct.h"

#include <algorithm>
#include <map>

namespace reprise::planner {
void ApplyKeepSet(const Problem& problem, const KeepSet& cut, Retention tail,
                  Flags& flags) {
  for (const OpId o : cut.recomputed) {
    for (const ValueId v : problem.versions.Make(o)) {
      const int32_t flag = problem.FlagAt(v, cut.at);
      if (problem.flag_fixed[flag] != 0) continue;
      if (!problem.IsTail(flag)) {
        flags[flag] = Retention::kShare;
      } else if (flags[flag] == Retention::kAgain) {
        flags[flag] = tail;
      }
    }
  }
  for (const ValueId v : cut.saved) {
    const int32_t flag = problem.FlagAt(v, cut.at);
    if (problem.IsTail(flag)) flags[flag] = Retention::kSave;
  }
}

Flags FromCuts(const Problem& problem, const ConstructOptions& options,
               Certificate& certificate, Generator& generator, Archive& archive,
               Effort& effort) {
  const Score score = ScoreOf(problem, options.budget_bytes);
  Flags flags = BaseFlags(problem);
  Flags best = flags;
  int64_t best_score = Score::kWorst;
  // The room subtracted from each window, and how often it was solved.
  std::map<OpId, int64_t> less;
  const int64_t begin = effort.ticks();
  for (int round = 0; round < options.rounds && !effort.Over(); ++round) {
    if (options.ticks > 0 && effort.ticks() - begin > options.ticks) break;
    const Generated generated = generator.Generate(flags, effort);
    if (!generated.valid) break;
    archive.Add(generated, generator.execs(), "min-cut");
    if (score.Of(generated) < best_score) {
      best_score = score.Of(generated);
      best = flags;
    }
    const int64_t over = generated.peak_bytes - options.budget_bytes;
    if (over <= 0 || generated.peak_at == kNoOp) break;
    const auto [window, first] = less.try_emplace(generated.peak_at, 0);
    if (!first) window->second += over;
    const WindowResult cut = certificate.KeepSetFor(
        generated.peak_at, options.budget_bytes - window->second);
    if (!cut.has_keep_set) {
      // No room is left to subtract: discard what spans the peak one by one.
      break;
    }
    ApplyKeepSet(problem, cut.keep_set, options.tail, flags);
  }
  return best;
}

void Restore(const Problem& problem, const Score& score, int64_t ticks,
             Generator& generator, Flags& flags, Archive& archive,
             Effort& effort) {
  std::vector<int32_t> dropped;
  for (int32_t f = 0; f < problem.flag_count(); ++f) {
    if (!problem.IsTail(f) && flags[f] != Retention::kSave) {
      dropped.push_back(f);
    }
  }
  std::stable_sort(dropped.begin(), dropped.end(), [&](int32_t a, int32_t b) {
    const auto cost = [&](int32_t f) {
      return problem.rules
          .rerun_ns[problem.versions.maker[problem.flag_value[f]]];
    };
    return cost(a) > cost(b);
  });
  const int64_t begin = generator.ticks();
  int64_t best = score.Of(generator.Generate(flags));
  for (const int32_t f : dropped) {
    if (generator.ticks() - begin > ticks || effort.Over()) break;
    const int64_t before = generator.ticks();
    const Retention was = flags[f];
    flags[f] = Retention::kSave;
    const Generated generated = generator.Generate(flags, best);
    const int64_t now = score.Of(generated);
    if (now < best) {
      best = now;
      archive.Add(generated, generator.execs(), "restore");
    } else {
      flags[f] = was;
    }
    effort.Spend(generator.ticks() - before);
  }
}

std::vector<OpId> HoldMore(const Problem& problem, int64_t budget_bytes,
                           std::vector<OpId> execs, int64_t ticks,
                           Effort& effort) {
  struct Candidate {
    double worth;
    int32_t from, to;  // begin and end of the absence
    bool operator<(const Candidate& other) const {
      if (worth != other.worth) return worth > other.worth;
      return to < other.to;
    }
  };
  const Versions& versions = problem.versions;
  const int64_t begin = effort.ticks();
  std::vector<int64_t> bytes;
  for (bool changed = true; changed;) {
    if (effort.Over() || effort.ticks() - begin > ticks) break;
    changed = false;
    const int32_t count = static_cast<int32_t>(execs.size());
    // By storage: when its life began, and when it was last read.
    std::vector<int32_t> born(problem.bytes.size(), -1);
    std::vector<int32_t> read(problem.bytes.size(), -1);
    std::vector<uint8_t> gone(count, 0);
    std::vector<Candidate> candidates;
    bytes.assign(count + 1, 0);
    const auto close = [&](StorageId s, bool at_end) {
      if (born[s] < 0) return;
      const bool stays = at_end && problem.required[s] != 0;
      const int32_t last = stays ? count - 1 : std::max(born[s], read[s]);
      bytes[born[s]] += problem.bytes[s];
      bytes[last + 1] -= problem.bytes[s];
    };
    std::vector<uint8_t> ran(problem.op_count, 0);
    for (int32_t at = 0; at < count; ++at) {
      const OpId o = execs[at];
      for (const ValueId v : versions.Need(o)) read[versions.storage[v]] = at;
      const auto writes = problem.Writes(o);
      const bool simple =
          ran[o] != 0 && writes.size() == 1 && versions.Make(o).size() == 1 &&
          versions.Last(writes[0]) == versions.first_value[writes[0]];
      for (const StorageId s : writes) {
        close(s, /*at_end=*/false);
        if (simple) {
          const int32_t from = std::max(born[s], read[s]) + 1;
          candidates.push_back(
              {static_cast<double>(problem.rules.rerun_ns[o] + 1) /
                   (static_cast<double>(problem.bytes[s] + 1) *
                    (at - from + 1)),
               from, at});
        }
        born[s] = at;
        read[s] = at;
      }
      ran[o] = 1;
    }
    for (StorageId s = 0; s < static_cast<StorageId>(born.size()); ++s) {
      close(s, /*at_end=*/true);
    }
    int64_t live = problem.static_bytes;
    for (int32_t at = 0; at < count; ++at) {
      live += bytes[at];
      bytes[at] = live + problem.workspace[execs[at]];
    }
    effort.Spend(4 * count);
    std::sort(candidates.begin(), candidates.end());
    for (const Candidate& c : candidates) {
      if (effort.Over() || effort.ticks() - begin > ticks) break;
      const int64_t own = problem.bytes[problem.Writes(execs[c.to])[0]];
      int32_t at = c.from;
      while (at < c.to && bytes[at] + own <= budget_bytes) ++at;
      effort.Spend(1 + (at - c.from) / 4);
      if (at < c.to) continue;
      for (at = c.from; at < c.to; ++at) bytes[at] += own;
      gone[c.to] = 1;
      changed = true;
    }
    std::vector<OpId> kept;
    for (int32_t at = 0; at < count; ++at) {
      if (gone[at] == 0) kept.push_back(execs[at]);
    }
    // Remove re-runs that are not read, from back to front.
    std::vector<uint8_t> wanted(problem.bytes.size(), 0);
    for (size_t s = 0; s < wanted.size(); ++s) wanted[s] = problem.required[s];
    std::vector<int32_t> runs(problem.op_count, 0);
    for (const OpId o : kept) ++runs[o];
    execs.clear();
    for (size_t i = kept.size(); i-- > 0;) {
      const OpId o = kept[i];
      const auto writes = problem.Writes(o);
      const bool first = runs[o] == 1;
      const bool read_later =
          std::any_of(writes.begin(), writes.end(),
                      [&](StorageId s) { return wanted[s] != 0; });
      if (!first && !read_later && versions.Make(o).size() == writes.size()) {
        --runs[o];
        changed = true;
        continue;
      }
      --runs[o];
      for (const StorageId s : writes) wanted[s] = 0;
      for (const ValueId v : versions.Need(o)) wanted[versions.storage[v]] = 1;
      execs.push_back(o);
    }
    std::reverse(execs.begin(), execs.end());
  }
  return execs;
}

}  // namespace reprise::planner
