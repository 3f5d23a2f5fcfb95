// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/block_plan.h"

#include <algorithm>

#include "planner/construct/construct.h"
#include "planner/model/random.h"

namespace reprise::planner {
namespace {

constexpr int kMostBlockRounds = 12;
// Instances between two whose ends are always saved.
constexpr int kLongestSegment = 16;
// For an improvement: how often stretches are halved, and temperatures as
// powers of two of the base time.
constexpr int kRefinements = 3;
constexpr int32_t kMostStretches = 16;
// At first there are one to four stretches.
constexpr int32_t kFewestInStretch = 32;
constexpr int kHot = 8;
constexpr int kWarm = 10;  // starting from a schedule that fits
constexpr int kColdBlocks = 18;
// An impatient annealing that finds nothing better in this part of its ticks
// ends: the blocks differ too much to be decided alike.
constexpr int64_t kIdlePart = 4;

}  // namespace

BlockPlan::BlockPlan(const Problem& problem, const Blocks& blocks, OpId at)
    : problem_(problem),
      at_(at),
      class_of_(problem.op_count, -1),
      single_flags_(BaseFlags(problem)) {
  for (const BlockRun& run : blocks.runs) {
    if (run.begin < at) AddRun(run);
  }
}

void BlockPlan::AddRun(const BlockRun& run) {
  const Versions& versions = problem_.versions;
  const int32_t count = std::min(run.count, (at_ - run.begin) / run.period);
  if (count < 2) return;
  // By position: the class of the op, merged with those of ops that make
  // versions of the same storage in the same instance.
  std::vector<int32_t> class_at(run.period, -1);
  for (int32_t place = 0; place < run.period; ++place) {
    const OpId o = run.begin + place;
    if (problem_.rules.may_rerun[o] == 0) continue;
    int32_t& mine = class_at[place];
    for (const ValueId v : versions.Make(o)) {
      if (versions.IsFirst(v)) continue;
      const OpId before = versions.maker[v - 1];
      if (before >= run.begin) mine = class_at[before - run.begin];
    }
    if (mine < 0) {
      mine = static_cast<int32_t>(classes_.size());
      BlockClass c{
          .run_begin = run.begin, .period = run.period, .count = count};
      c.again.assign(std::clamp(count / kFewestInStretch, 1, 4), 0);
      for (int32_t s = 0; s < c.stretches(); ++s) {
        AddRanks(c.StretchBegin(s + 1) - c.StretchBegin(s));
      }
      classes_.push_back(std::move(c));
    }
    classes_[mine].first.push_back(o);
    for (int32_t i = 0; i < count; ++i) class_of_[o + i * run.period] = mine;
  }
}

void BlockPlan::AddRanks(int32_t count) {
  std::vector<int32_t>& rank = ranks_[count];
  if (!rank.empty()) return;
  constexpr uint32_t kGolden = 2654435769u;  // 2^32 / golden ratio
  std::vector<int32_t> order(count);
  for (int32_t i = 0; i < count; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [](int32_t a, int32_t b) {
    return (a + 1) * kGolden < (b + 1) * kGolden;
  });
  rank.resize(count);
  for (int32_t i = 0; i < count; ++i) rank[order[i]] = i;
}

void BlockPlan::TakeCounts(const WindowResult& cuts) {
  const KeepSet& small = cuts.keep_set;
  std::vector<int32_t> low(classes_.size(), 0), high(classes_.size(), 0);
  const auto count = [&](const KeepSet& cut, std::vector<int32_t>& counts) {
    // For ops that are decided together, the last one counts.
    for (const OpId o : cut.recomputed) {
      if (class_of_[o] < 0) continue;
      const BlockClass& c = classes_[class_of_[o]];
      if ((o - c.first.back()) % c.period == 0) ++counts[class_of_[o]];
    }
  };
  count(small, high);
  double part = 1;  // way from the rich cut to the small one
  if (cuts.has_rich_set && cuts.rich_set.saved_bytes > small.saved_bytes) {
    count(cuts.rich_set, low);
    part = static_cast<double>(cuts.rich_set.saved_bytes - cuts.room_bytes) /
           static_cast<double>(cuts.rich_set.saved_bytes - small.saved_bytes);
    part = std::clamp(part, 0.0, 1.0);
  } else {
    low = high;
  }
  for (size_t i = 0; i < classes_.size(); ++i) {
    BlockClass& c = classes_[i];
    const double mixed = low[i] + part * (high[i] - low[i]);
    const int64_t again =
        std::clamp<int64_t>(static_cast<int64_t>(mixed + 0.999), 0, c.count);
    for (int32_t s = 0; s < c.stretches(); ++s) {
      c.again[s] = static_cast<int32_t>(again * (s + 1) / c.stretches() -
                                        again * s / c.stretches());
      c.again[s] =
          std::min(c.again[s], c.StretchBegin(s + 1) - c.StretchBegin(s));
    }
  }
  // Ops in no class follow the smaller cut.
  single_flags_ = BaseFlags(problem_);
  KeepSet alone{.at = at_};
  for (const OpId o : small.recomputed) {
    if (class_of_[o] < 0) alone.recomputed.push_back(o);
  }
  for (BlockClass& c : classes_) c.keeps_tail = false;
  for (const ValueId v : small.saved) {
    const int32_t c = class_of_[problem_.versions.maker[v]];
    if (c < 0) {
      alone.saved.push_back(v);
    } else if (problem_.IsTail(problem_.FlagAt(v, at_))) {
      classes_[c].keeps_tail = true;
    }
  }
  ApplyKeepSet(problem_, alone, Retention::kAgain, single_flags_);
}

void BlockPlan::SetFlags(const BlockClass& c, Flags& flags) const {
  for (int32_t s = 0; s < c.stretches(); ++s) {
    const int32_t begin = c.StretchBegin(s), end = c.StretchBegin(s + 1);
    const std::vector<int32_t>& rank = ranks_.at(end - begin);
    for (int32_t i = begin; i < end; ++i) {
      const bool again = rank[i - begin] < c.again[s];
      for (const OpId first : c.first) {
        for (const ValueId v : problem_.versions.Make(first + i * c.period)) {
          const int32_t flag = problem_.FlagAt(v, at_);
          if (problem_.flag_fixed[flag] != 0) continue;
          if (problem_.IsTail(flag)) {
            flags[flag] =
                !again && c.keeps_tail ? Retention::kSave : Retention::kAgain;
          } else if (problem_.flag_to[flag] != at_) {
            flags[flag] = !again            ? Retention::kSave
                          : c.keeps_for_all ? Retention::kShare
                                            : Retention::kAgain;
          }
        }
      }
    }
  }
}

Flags BlockPlan::MakeFlags() const {
  Flags flags = single_flags_;
  for (const BlockClass& c : classes_) SetFlags(c, flags);
  return flags;
}

void BlockPlan::AddLong(OpId op, OpId end, std::vector<ValueId>& values) const {
  for (const ValueId v : problem_.versions.Make(op)) {
    const OpId next = problem_.flag_to[problem_.FlagAt(v, end)];
    if (next < problem_.first_backward) values.push_back(v);
  }
}

std::vector<ValueId> BlockPlan::SegmentEnds(int length) const {
  std::vector<ValueId> values;
  for (const BlockClass& c : classes_) {
    for (int32_t s = 0; s < c.stretches(); ++s) {
      const int32_t begin = c.StretchBegin(s);
      const int32_t size = c.StretchBegin(s + 1) - begin;
      // The instances that would be run again last.
      const int32_t rank_from = size - (size + length - 1) / length;
      for (int32_t i = 0; i < size; ++i) {
        if (ranks_.at(size)[i] < rank_from) continue;
        const OpId end = c.run_begin + (begin + i + 1) * c.period;
        for (const OpId first : c.first) {
          AddLong(first + (begin + i) * c.period, end, values);
        }
      }
    }
  }
  return values;
}

std::vector<ValueId> BlockPlan::LongSkips() const {
  std::vector<ValueId> values;
  for (const BlockClass& c : classes_) {
    const OpId end = c.run_begin + c.period * c.count;
    for (const OpId first : c.first) {
      for (OpId o = first; o < end; o += c.period) AddLong(o, end, values);
    }
  }
  return values;
}

void BlockPlan::Fit(int64_t budget_bytes, Certificate& certificate,
                    Generator& generator, Archive& archive, Effort& effort) {
  const Score score = ScoreOf(problem_, budget_bytes);
  Best best;
  const std::vector<ValueId> skips = LongSkips();
  for (const bool with_skips : {false, true}) {
    if (with_skips && skips.empty()) break;
    for (int length = 2 * kLongestSegment; length >= 2; length /= 2) {
      if (effort.Over()) break;
      std::vector<ValueId> saved;
      if (length <= kLongestSegment) saved = SegmentEnds(length);
      if (with_skips) saved.insert(saved.end(), skips.begin(), skips.end());
      const int64_t before = best.score;
      FitSaving(saved, score, certificate, generator, archive, effort, best);
      const bool first = length > kLongestSegment;
      if (best.score >= before && !first &&
          archive.Best(budget_bytes) != nullptr) {
        break;
      }
    }
  }
  if (best.classes.empty()) return;
  classes_ = std::move(best.classes);
  single_flags_ = std::move(best.single_flags);
}

void BlockPlan::FitSaving(const std::vector<ValueId>& saved, const Score& score,
                          Certificate& certificate, Generator& generator,
                          Archive& archive, Effort& effort, Best& best) {
  const int64_t budget = score.budget_bytes;
  // The most room known to fit, and the least known not to.
  int64_t fits = 0, exceeds = budget + 1, room = budget;
  for (int round = 0; round < kMostBlockRounds && !effort.Over(); ++round) {
    const WindowResult cuts = certificate.KeepSetFor(at_, room, saved);
    if (!cuts.has_keep_set) {
      // It is impossible to save less than this.
      if (fits > 0 || room == budget) return;
      fits = room;
      room = fits + (exceeds - fits) / 2;
      continue;
    }
    TakeCounts(cuts);
    const Generated generated = generator.Generate(MakeFlags(), effort);
    if (!generated.valid) return;
    archive.Add(generated, generator.execs(), "blocks");
    if (score.Of(generated) < best.score) {
      best = {score.Of(generated), classes_, single_flags_};
    }
    const int64_t over = generated.peak_bytes - budget;
    if (over <= 0) {
      fits = room;
      if (room == budget || exceeds - fits <= budget / 1000) return;
      room = std::min(fits - over, fits + (exceeds - fits) / 2);
    } else {
      exceeds = room;
      room = fits > 0 ? fits + (exceeds - fits) / 2 : room - over;
      if (room <= problem_.static_bytes) return;
    }
  }
}

void BlockPlan::Refine() {
  for (BlockClass& c : classes_) {
    const BlockClass was = c;
    if (2 * was.stretches() > std::min(kMostStretches, c.count)) continue;
    c.again.assign(2 * was.stretches(), 0);
    for (int32_t s = 0; s < was.stretches(); ++s) {
      const int32_t begin = was.StretchBegin(s), end = was.StretchBegin(s + 1);
      const int32_t half = c.StretchBegin(2 * s + 1) - begin;
      c.again[2 * s] = was.again[s] * half / (end - begin);
      c.again[2 * s + 1] = was.again[s] - c.again[2 * s];
      if (c.again[2 * s + 1] > end - begin - half) {
        c.again[2 * s + 1] = end - begin - half;
        c.again[2 * s] = was.again[s] - c.again[2 * s + 1];
      }
      AddRanks(half);
      AddRanks(end - begin - half);
    }
  }
}

void BlockPlan::Improve(const Score& score, uint64_t seed, int64_t ticks,
                        bool patient, int64_t good_enough_ns,
                        Generator& generator, Archive& archive,
                        Effort& effort) {
  if (classes_.empty()) return;
  Random random(seed);
  const Archive::Point* known = archive.Best(score.budget_bytes);
  const int hot = known == nullptr ? kHot : kWarm;
  for (int round = 0; round < kRefinements; ++round) {
    if (round > 0) Refine();
    if (!Anneal(score, random, ticks / kRefinements, hot + round, patient,
                good_enough_ns, generator, archive, effort) &&
        !patient) {
      return;
    }
  }
}

bool BlockPlan::Anneal(const Score& score, Random& random, int64_t ticks,
                       int hot, bool patient, int64_t good_enough_ns,
                       Generator& generator, Archive& archive, Effort& effort) {
  Flags flags = MakeFlags();
  const int64_t begin = generator.ticks();
  Generated first = generator.Generate(flags);
  if (!first.valid) return false;
  effort.Spend(generator.ticks() - begin);
  int64_t now = score.Of(first), best = now;
  const Archive::Point* known = archive.Best(score.budget_bytes);
  const int64_t to_beat =
      known == nullptr ? best : std::min(best, known->time_ns);
  std::vector<BlockClass> best_classes = classes_;
  const int class_count = static_cast<int>(classes_.size());
  std::vector<std::pair<int, BlockClass>> undo;
  while (!effort.Over() && generator.ticks() - begin < ticks &&
         best > good_enough_ns) {
    const int64_t before = generator.ticks();
    if (!patient && best >= to_beat && before - begin > ticks / kIdlePart) {
      break;
    }
    undo.clear();
    const auto change = [&](int which, int direction) {
      BlockClass& c = classes_[which];
      undo.emplace_back(which, c);
      const bool all = random.Percent(40);
      const int only = random.Below(c.stretches());
      const int shift = random.Below(5);
      for (int s = 0; s < c.stretches(); ++s) {
        if (!all && s != only) continue;
        const int32_t most = c.StretchBegin(s + 1) - c.StretchBegin(s);
        const int32_t step = std::max(1, most >> (1 + shift));
        c.again[s] = std::clamp(c.again[s] + direction * step, 0, most);
      }
      SetFlags(c, flags);
    };
    const int kind = random.Below(100);
    if (kind < 70) {
      const int direction = random.Percent(50) ? 1 : -1;
      change(random.Below(class_count), direction);
      if (random.Percent(50)) change(random.Below(class_count), -direction);
    } else if (kind < 85) {
      // Moves some of a stretch's re-runs to another stretch of the same op.
      const int which = random.Below(class_count);
      BlockClass& c = classes_[which];
      undo.emplace_back(which, c);
      const int from = random.Below(c.stretches());
      const int to = random.Below(c.stretches());
      const int32_t room =
          c.StretchBegin(to + 1) - c.StretchBegin(to) - c.again[to];
      const int32_t moved =
          std::min(room, std::max(1, c.again[from] >> random.Below(5)));
      if (from == to || moved <= 0 || moved > c.again[from]) continue;
      c.again[from] -= moved;
      c.again[to] += moved;
      SetFlags(c, flags);
    } else {
      const int which = random.Below(class_count);
      undo.emplace_back(which, classes_[which]);
      classes_[which].keeps_for_all = !classes_[which].keeps_for_all;
      SetFlags(classes_[which], flags);
    }
    // Temperature from 2^-hot to 2^-cold of the base time.
    const int64_t spent = generator.ticks() - begin;
    const int shift =
        hot + static_cast<int>((kColdBlocks - hot) * spent / (ticks + 1));
    const int64_t slack =
        static_cast<int64_t>(static_cast<__int128>(random.Exponential16()) *
                                 (score.base_time_ns >> shift) >>
                             16);
    const int64_t most =
        now >= Score::kWorst - slack ? Score::kWorst : now + slack;
    const Generated generated = generator.Generate(flags, most);
    effort.Spend(generator.ticks() - before + 1);
    const int64_t next = score.Of(generated);
    if (!generated.valid || generated.too_slow || next > most) {
      while (!undo.empty()) {
        classes_[undo.back().first] = undo.back().second;
        SetFlags(undo.back().second, flags);
        undo.pop_back();
      }
      continue;
    }
    now = next;
    if (now >= best) continue;
    best = now;
    best_classes = classes_;
    archive.Add(generated, generator.execs(), "block-moves");
  }
  classes_ = std::move(best_classes);
  return best < to_beat;
}

}  // namespace reprise::planner
