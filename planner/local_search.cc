// SPDX-License-Identifier: Apache-2.0
#include "planner/local_search.h"

#include <algorithm>

namespace reprise::planner {
namespace {

class Annealing {
 public:
  Annealing(const Problem& problem, const LocalSearchOptions& options,
            Generator& generator, Flags& flags, Archive& archive,
            Effort& effort)
      : problem_(problem),
        options_(options),
        generator_(generator),
        flags_(flags),
        archive_(archive),
        effort_(effort),
        random_(options.seed),
        slot_(problem.flag_count(), -1) {
    score_ = {.budget_bytes = options.budget_bytes,
              .base_time_ns = problem.base.time_ns,
              .base_peak_bytes = problem.base.peak_bytes};
    for (int32_t f = 0; f < problem.flag_count(); ++f) {
      if (problem.flag_fixed[f] != 0) continue;
      (problem.IsTail(f) ? tails_ : gaps_).push_back(f);
      if (!problem.IsTail(f) && flags[f] != Retention::kSave) AddDropped(f);
    }
  }

  void Run() {
    if (gaps_.empty()) return;
    const int64_t begin = generator_.ticks();
    Generated generated = generator_.Generate(flags_);
    Keep(generated);
    current_ = score_.Of(generated);
    best_ = current_;
    best_flags_ = flags_;
    int64_t spent = generator_.ticks() - begin;
    effort_.Spend(spent);
    while (spent < options_.ticks && !effort_.Over()) {
      const int64_t temperature = Temperature(spent);
      const int64_t before = generator_.ticks();
      // At least one tick each, so that a step without candidates ends too.
      Step(temperature);
      const int64_t ticks = generator_.ticks() - before + 8;
      spent += ticks;
      effort_.Spend(ticks);
      if (best_feasible_ <= options_.good_enough_ns) break;
      // Above the budget for a quarter of the run: time is worth less.
      if (best_feasible_ == Score::kWorst && spent > raise_at_) RaiseFactor();
    }
    flags_ = best_flags_;
  }

 private:
  struct Flip {
    int32_t flag;
    Retention before;
  };

  // Geometric: the exponent falls linearly in ticks; 8 steps per power of two.
  int64_t Temperature(int64_t spent) const {
    const int64_t steps = 8 * (options_.cold - options_.hot);
    const int64_t step = std::min<int64_t>(
        steps, static_cast<int64_t>(static_cast<__int128>(spent) * steps /
                                    std::max<int64_t>(1, options_.ticks)));
    // 2^(-i/8) * 2^16
    static constexpr int64_t kEighths[8] = {65536, 60097, 55109, 50535,
                                            46341, 42495, 38968, 35734};
    const __int128 base =
        static_cast<__int128>(problem_.base.time_ns) * kEighths[step % 8];
    return static_cast<int64_t>(base >> (16 + options_.hot + step / 8));
  }

  void RaiseFactor() {
    raise_at_ += options_.ticks / 8;
    score_.factor *= 4;
    if (score_.factor > 1'000'000) return;
    const Generated generated = generator_.Generate(flags_);
    current_ = score_.Of(generated);
    best_ = current_;
    best_flags_ = flags_;
    Keep(generated);
  }

  void AddDropped(int32_t flag) {
    if (slot_[flag] >= 0) return;
    slot_[flag] = static_cast<int32_t>(dropped_.size());
    dropped_.push_back(flag);
  }
  void RemoveDropped(int32_t flag) {
    const int32_t slot = slot_[flag];
    if (slot < 0) return;
    dropped_[slot] = dropped_.back();
    slot_[dropped_[slot]] = slot;
    dropped_.pop_back();
    slot_[flag] = -1;
  }

  void Set(int32_t flag, Retention value) {
    if (flags_[flag] == value) return;
    flips_.push_back({flag, flags_[flag]});
    Store(flag, value);
  }
  void Store(int32_t flag, Retention value) {
    flags_[flag] = value;
    if (problem_.IsTail(flag)) return;
    if (value == Retention::kSave) {
      RemoveDropped(flag);
    } else {
      AddDropped(flag);
    }
  }

  // The flags that hold something alive at the current peak.
  void FindPeakFlags() {
    peak_flags_.clear();
    alive_.clear();
    generator_.AliveAt(peak_exec_, alive_);
    const Versions& versions = problem_.versions;
    const OpId at = peak_at_ == kNoOp ? problem_.op_count : peak_at_;
    for (const StorageId s : alive_) {
      ValueId v = versions.first_value[s];
      while (v + 1 < versions.first_value[s + 1] &&
             versions.maker[v + 1] < at) {
        ++v;
      }
      if (versions.maker[v] >= at) continue;
      const auto uses = problem_.Uses(v);
      const auto next = std::lower_bound(uses.begin(), uses.end(), at);
      const int32_t flag =
          problem_.flag_begin[v] + static_cast<int32_t>(next - uses.begin());
      if (problem_.flag_fixed[flag] == 0) peak_flags_.push_back(flag);
    }
  }

  void Propose() {
    const int kind = random_.Below(100);
    if (kind < 45 && !peak_flags_.empty()) {
      const int32_t flag = peak_flags_[random_.Below(peak_flags_.size())];
      const bool share = random_.Percent(70);
      if (flags_[flag] == Retention::kSave) {
        Set(flag, share ? Retention::kShare : Retention::kAgain);
      } else {
        Set(flag, flags_[flag] == Retention::kShare ? Retention::kAgain
                                                    : Retention::kShare);
      }
    } else if (kind < 75 && !dropped_.empty()) {
      Set(dropped_[random_.Below(dropped_.size())], Retention::kSave);
    } else if (kind < 87 || tails_.empty()) {
      RandomFlip();
    } else {
      const int32_t flag = tails_[random_.Below(tails_.size())];
      Set(flag, flags_[flag] == Retention::kSave ? Retention::kAgain
                                                 : Retention::kSave);
    }
    if (random_.Percent(25)) RandomFlip();
  }

  void RandomFlip() {
    // Half of the random flips concern what is dropped: their neighbourhood is
    // where the plan can change at all.
    if (!dropped_.empty() && random_.Percent(50)) {
      const int32_t flag = dropped_[random_.Below(dropped_.size())];
      Set(flag, static_cast<Retention>(random_.Below(3)));
      return;
    }
    const int32_t flag = gaps_[random_.Below(gaps_.size())];
    Set(flag, static_cast<Retention>(random_.Below(3)));
  }

  void Step(int64_t temperature) {
    flips_.clear();
    Propose();
    if (flips_.empty()) return;
    const __int128 rise =
        static_cast<__int128>(temperature) * random_.Exponential16() >> 16;
    const __int128 limit = rise + current_;
    const int64_t most = limit >= Score::kWorst ? Score::kWorst - 1
                                                : static_cast<int64_t>(limit);
    const Generated generated = generator_.Generate(flags_, most);
    const int64_t score = score_.Of(generated);
    if (score > most) {
      for (size_t i = flips_.size(); i-- > 0;) {
        Store(flips_[i].flag, flips_[i].before);
      }
      return;
    }
    current_ = score;
    Keep(generated);
    if (score < best_) {
      best_ = score;
      best_flags_ = flags_;
    }
  }

  // Called on every accepted candidate while it is in the generator.
  void Keep(const Generated& generated) {
    if (!generated.valid) return;
    peak_exec_ = generated.peak_exec;
    peak_at_ = generated.peak_at;
    FindPeakFlags();
    if (generated.peak_bytes <= options_.budget_bytes) {
      if (generated.time_ns < best_feasible_) {
        best_feasible_ = generated.time_ns;
        archive_.Add(generated.peak_bytes, generated.time_ns,
                     generator_.execs(), options_.name);
      }
    } else if (generated.peak_bytes < smallest_over_) {
      smallest_over_ = generated.peak_bytes;
      archive_.Add(generated.peak_bytes, generated.time_ns, generator_.execs(),
                   options_.name);
    }
  }

  const Problem& problem_;
  const LocalSearchOptions& options_;
  Generator& generator_;
  Flags& flags_;
  Archive& archive_;
  Effort& effort_;
  Random random_;
  Score score_;

  std::vector<int32_t> gaps_, tails_;  // flags that may change
  std::vector<int32_t> dropped_;       // gaps that are not saved
  std::vector<int32_t> slot_;          // by flag: its place in dropped_ or -1
  std::vector<int32_t> peak_flags_;
  std::vector<StorageId> alive_;
  std::vector<Flip> flips_;
  int32_t peak_exec_ = 0;
  OpId peak_at_ = 0;
  int64_t current_ = Score::kWorst;
  int64_t best_ = Score::kWorst;
  Flags best_flags_;
  int64_t best_feasible_ = Score::kWorst;
  int64_t smallest_over_ = Score::kWorst;
  int64_t raise_at_ = options_.ticks / 4;
};

}  // namespace

void LocalSearch(const Problem& problem, const LocalSearchOptions& options,
                 Generator& generator, Flags& flags, Archive& archive,
                 Effort& effort) {
  Annealing(problem, options, generator, flags, archive, effort).Run();
}

}  // namespace reprise::planner
