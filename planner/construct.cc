// SPDX-License-Identifier: Apache-2.0
#include "planner/construct.h"

#include <algorithm>
#include <map>

namespace reprise::planner {
namespace {

// The flag of the gap or tail of a value that spans a base position.
int32_t FlagAt(const Problem& problem, ValueId v, OpId at) {
  const auto uses = problem.Uses(v);
  const auto next = std::lower_bound(uses.begin(), uses.end(), at);
  return problem.flag_begin[v] + static_cast<int32_t>(next - uses.begin());
}

}  // namespace

void ApplyKeepSet(const Problem& problem, const KeepSet& cut, Retention tail,
                  Flags& flags) {
  for (const OpId o : cut.recomputed) {
    for (const ValueId v : problem.versions.Make(o)) {
      const int32_t flag = FlagAt(problem, v, cut.at);
      if (problem.flag_fixed[flag] != 0) continue;
      if (!problem.IsTail(flag)) {
        flags[flag] = Retention::kShare;
      } else if (flags[flag] == Retention::kAgain) {
        flags[flag] = tail;
      }
    }
  }
  for (const ValueId v : cut.saved) {
    const int32_t flag = FlagAt(problem, v, cut.at);
    if (problem.IsTail(flag)) flags[flag] = Retention::kSave;
  }
}

Flags FromCuts(const Problem& problem, const ConstructOptions& options,
               Certificate& certificate, Generator& generator, Archive& archive,
               Effort& effort) {
  const Score score{.budget_bytes = options.budget_bytes,
                    .base_time_ns = problem.base.time_ns,
                    .base_peak_bytes = problem.base.peak_bytes};
  Flags flags = BaseFlags(problem);
  Flags best = flags;
  int64_t best_score = Score::kWorst;
  // Room taken away from each window, and how often it was asked.
  std::map<OpId, int64_t> less;
  for (int round = 0; round < options.rounds && !effort.Over(); ++round) {
    const int64_t before = generator.ticks();
    const Generated generated = generator.Generate(flags);
    effort.Spend(generator.ticks() - before);
    if (!generated.valid) break;
    archive.Add(generated.peak_bytes, generated.time_ns, generator.execs(),
                "min-cut");
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
      // No room is left to take away: drop what spans the peak one by one.
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
      archive.Add(generated.peak_bytes, generated.time_ns, generator.execs(),
                  "restore");
    } else {
      flags[f] = was;
    }
    effort.Spend(generator.ticks() - before);
  }
}

}  // namespace reprise::planner
