// SPDX-License-Identifier: Apache-2.0
#include "planner/squeeze.h"

#include <algorithm>

#include "planner/free_order.h"
#include "planner/random.h"

namespace reprise::planner {
namespace {

// Longer lists than this, in runs per op, are not looked at.
constexpr int32_t kMostRunsPerOp = 5;
// 1 % of the budget for one exec, squared, in the units of FreeOrder: the
// temperatures are counted in it, times 2^16.
constexpr int64_t kPercentSquared = 164 * 164;

// One cooling.
struct Round {
  int64_t hot16, cold16;  // temperatures in kPercentSquared, times 2^16
  // The energy of one exec in temperatures, times 2^16: long lists are cheap
  // only once it is cold.
  int64_t exec_price16;
  int most_chain;
  bool only_shift;  // looks for an order, makes nothing again
};
constexpr Round kOrder = {1 << 21, 1 << 12, 0, 0, true};
constexpr Round kFirst = {6 << 16, 3277, 19'661, 500, false};
constexpr Round kAgain = {49'152, 1311, 9'830, 500, false};

constexpr int64_t kTicksPerStep = 20;

// Geometric in ticks.
int64_t Temperature(const Round& round, int64_t spent, int64_t ticks) {
  // 2^(-i/16) * 2^16
  static constexpr int64_t kSixteenths[16] = {
      65536, 62757, 60097, 57549, 55109, 52772, 50535, 48393,
      46341, 44376, 42495, 40693, 38968, 37316, 35734, 34219};
  int halvings = 0;
  while ((round.hot16 >> halvings) > round.cold16) ++halvings;
  const int64_t step = static_cast<int64_t>(static_cast<__int128>(spent) *
                                            halvings * 16 / ticks);
  const int64_t hot = (round.hot16 * kPercentSquared) >> 16;
  return (hot * kSixteenths[step % 16] >> 16) >> (step / 16);
}

bool Propose(const Round& round, FreeOrder& list, Random& random) {
  const int kind = round.only_shift ? 0 : random.Below(100);
  const int32_t size = list.size();
  if (kind < 45) {
    int32_t from = random.Below(size);
    if (random.Percent(30)) {
      const int32_t at = list.OverfullPosition(random);
      if (at >= 0) from = at + random.Below(61) - 30;
    }
    const int32_t reach =
        random.Below(3) == 0 ? size : (random.Below(3) != 0 ? 10 : 60);
    const int32_t to = from + random.Below(2 * int64_t{reach} + 1) - reach;
    return list.Shift(std::clamp(from, 0, size - 1),
                      std::clamp(to, 0, size - 1));
  }
  if (kind >= 82) return list.Remove(random.Below(size));
  int32_t at = -1;
  if (random.Percent(50)) at = list.OverfullPosition(random);
  if (at < 0) at = random.Below(size);
  return list.Remake(at, 10 * random.Below(4), round.most_chain, random);
}

// Anneals a list until it fits or the ticks are spent.
void Cool(const Round& round, int64_t ticks, int32_t most_execs,
          FreeOrder& list, Random& random, Effort& effort) {
  int64_t over = list.Over();
  const int64_t begin = list.ticks();
  int64_t spent = 0;
  int64_t steps = 0;
  while (over > 0 && spent < ticks && !effort.Over()) {
    const int64_t temperature = Temperature(round, spent, ticks);
    const int32_t size = list.size();
    if (Propose(round, list, random)) {
      const int64_t now = list.Over();
      const __int128 longer = list.size() - size;
      const __int128 rise =
          now - over + (longer * temperature * round.exec_price16 >> 16);
      const __int128 most =
          static_cast<__int128>(temperature) * random.Exponential16() >> 16;
      if (list.size() <= most_execs && (rise <= most || now == 0)) {
        over = now;
      } else {
        list.Undo();
      }
    }
    const int64_t all = list.ticks() - begin + kTicksPerStep * ++steps;
    effort.Spend(all - spent);
    spent = all;
  }
}

class BaseOrder {
 public:
  BaseOrder(const Problem& problem, const std::vector<OpId>& pebbling)
      : problem_(problem),
        pebbling_(pebbling),
        first_(problem.op_count, -1),
        before_(pebbling.size(), -1),
        last_(problem.op_count, -1),
        made_at_(problem.op_count, -1),
        wanted_(problem.op_count, 0) {
    for (size_t i = 0; i < pebbling.size(); ++i) {
      const OpId o = pebbling[i];
      before_[i] = last_[o];
      last_[o] = static_cast<int32_t>(i);
      if (first_[o] < 0) first_[o] = static_cast<int32_t>(i);
    }
  }

  std::vector<OpId> Run(Effort& effort, int64_t most_ticks) {
    const int64_t begin = effort.ticks();
    for (OpId o = 0; o < problem_.op_count; ++o) {
      Lead(problem_.versions.Need(o), first_[o]);
      execs_.push_back(o);
      made_at_[o] = at_ = first_[o];
      effort.Spend(ticks_);
      ticks_ = 0;
      if (effort.Over()) return {};
      if (most_ticks > 0 && effort.ticks() - begin > most_ticks) return {};
    }
    Lead(problem_.end_need, static_cast<int32_t>(pebbling_.size()));
    return execs_;
  }

 private:
  // Re-runs what makes the needs at a place of the pebbling: further on from
  // where the last op left it, or from its beginning.
  void Lead(std::span<const ValueId> needs, int32_t place) {
    if (place > at_ && Burst(needs, place, at_)) return;
    for (OpId o = 0; o < problem_.op_count; ++o) {
      if (problem_.rules.may_rerun[o]) made_at_[o] = -1;
    }
    Burst(needs, place, -1);
  }

  // Appends what makes the needs out of the pebbling between two places (both
  // excluded). False, and nothing happens, where a value is wanted that the
  // pebbling has at `after` and this list has not.
  bool Burst(std::span<const ValueId> needs, int32_t before, int32_t after) {
    burst_.clear();
    open_.clear();
    const auto want = [&](ValueId v) {
      const OpId m = problem_.versions.maker[v];
      if (wanted_[m]) return;
      wanted_[m] = 1;
      open_.push_back(m);
    };
    for (const ValueId v : needs) want(v);
    size_t left = open_.size();
    for (int32_t i = before - 1; i > after && left > 0; --i) {
      const OpId o = pebbling_[i];
      ++ticks_;
      if (!wanted_[o]) continue;
      if (!problem_.rules.may_rerun[o]) continue;  // held since its first run
      wanted_[o] = 0;
      burst_.push_back(i);
      for (const ValueId v : problem_.versions.Need(o)) want(v);
      left = open_.size() - burst_.size();
    }
    bool done = true;
    for (const OpId o : open_) {
      if (!wanted_[o]) continue;
      wanted_[o] = 0;
      // Its run that the pebbling reads at `after`.
      int32_t run = last_[o];
      while (run > after) run = before_[run];
      if (made_at_[o] < 0 || (made_at_[o] != run && MayRerun(o))) done = false;
    }
    if (!done) return false;
    for (size_t i = burst_.size(); i-- > 0;) {
      execs_.push_back(pebbling_[burst_[i]]);
      made_at_[pebbling_[burst_[i]]] = burst_[i];
    }
    return true;
  }

  bool MayRerun(OpId o) const { return problem_.rules.may_rerun[o] != 0; }

  const Problem& problem_;
  const std::vector<OpId>& pebbling_;
  std::vector<int32_t> first_;   // by op: its first run in the pebbling
  std::vector<int32_t> before_;  // by run: the run before it of the same op
  std::vector<int32_t> last_;    // by op: its last run
  // By op: the place in the pebbling of the run that this list did last.
  std::vector<int32_t> made_at_;
  std::vector<uint8_t> wanted_;  // by op
  std::vector<OpId> open_, execs_;
  std::vector<int32_t> burst_;
  int32_t at_ = -1;
  int64_t ticks_ = 0;
};

}  // namespace

Pebbler::Pebbler(const Problem& problem, int64_t budget_bytes, uint64_t seed)
    : list_(problem, budget_bytes),
      random_(seed),
      most_execs_(kMostRunsPerOp * problem.op_count) {
  std::vector<OpId> execs(problem.op_count);
  for (OpId o = 0; o < problem.op_count; ++o) execs[o] = o;
  list_.Assign(execs);
}

std::vector<OpId> Pebbler::Search(int64_t ticks, Effort& effort) {
  const auto cool = [&](const Round& round, int64_t share) {
    Cool(round, std::max<int64_t>(1, share), most_execs_, list_, random_,
         effort);
  };
  if (best_.empty()) {
    cool(kOrder, ticks / 8);
    cool(kFirst, ticks - ticks / 8);
  } else {
    // Once more, from the best list so far.
    list_.Assign(best_);
    cool(kAgain, ticks);
  }
  const int64_t over = list_.Over();
  if (best_.empty() || over < least_over_) {
    least_over_ = over;
    best_ = list_.Execs();
  }
  return least_over_ == 0 ? best_ : std::vector<OpId>{};
}

std::vector<OpId> InBaseOrder(const Problem& problem,
                              const std::vector<OpId>& pebbling, Effort& effort,
                              int64_t most_ticks) {
  return BaseOrder(problem, pebbling).Run(effort, most_ticks);
}

}  // namespace reprise::planner
