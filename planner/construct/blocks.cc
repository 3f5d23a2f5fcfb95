// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/blocks.h"

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

namespace reprise::planner {
namespace {

// A run of single ops needs at least this many.
constexpr int kFewestSingles = 4;

uint64_t Mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Finder: the search for runs in one step graph.
class Finder {
 public:
  explicit Finder(const Problem& problem)
      : problem_(problem), graph_(*problem.graph) {}

  // Finds the runs: candidate stretches, a selection without overlaps, checks
  // of reads in opposite order, and the best beginning of each block.
  Blocks Find() {
    HashOps();
    for (int window = 1; window < problem_.op_count; window *= 4) {
      if (!FindStretches(window)) break;
    }
    Select();
    for (size_t r = 0; r < blocks_.runs.size(); ++r) {
      Verify(r);
      Rotate(r);
    }
    DropEmpty();
    return std::move(blocks_);
  }

 private:
  // Ops [begin, end) of which each, except for the first `period`, repeats the
  // one a period before.
  struct Stretch {
    OpId begin, end;
    int32_t period;
    int64_t Covered() const { return int64_t{(end - begin) / period} * period; }
  };

  std::span<const ValueId> Need(OpId o) const {
    return problem_.versions.Need(o);
  }

  // Returns whether this many ops with this period make a run.
  static bool IsLongEnough(int64_t ops, int32_t period) {
    return period == 1 ? ops >= kFewestSingles : ops >= 2 * int64_t{period};
  }

  // hash_[i] is the hash of the ops before i, so windows are differences.
  void HashOps() {
    hash_.assign(1, 0);
    for (OpId o = 0; o < problem_.op_count; ++o) {
      const Op& op = graph_.ops[o];
      uint64_t h = std::hash<std::string>{}(op.name);
      const auto add = [&](int64_t value) {
        h = Mixed(h ^ static_cast<uint64_t>(value));
      };
      add(static_cast<int64_t>(op.kind));
      add(static_cast<int64_t>(op.phase));
      add(op.workspace_bytes);
      for (const StorageId s : op.reads) add(problem_.bytes[s]);
      add(-1);
      for (const StorageId s : op.writes) add(problem_.bytes[s]);
      hash_.push_back(hash_.back() * kBase + h);
    }
  }

  // Compares everything but what the ops read.
  bool IsSameOp(OpId a, OpId b) const {
    const Op& x = graph_.ops[a];
    const Op& y = graph_.ops[b];
    if (x.kind != y.kind || x.phase != y.phase ||
        x.workspace_bytes != y.workspace_bytes ||
        x.state_bytes != y.state_bytes || x.name != y.name) {
      return false;
    }
    const int64_t difference =
        x.time_ns > y.time_ns ? x.time_ns - y.time_ns : y.time_ns - x.time_ns;
    if (difference > std::max(x.time_ns, y.time_ns) / 4) return false;
    const auto same = [&](const std::vector<StorageId>& p,
                          const std::vector<StorageId>& q) {
      return std::equal(p.begin(), p.end(), q.begin(), q.end(),
                        [&](StorageId s, StorageId t) {
                          return problem_.bytes[s] == problem_.bytes[t] &&
                                 problem_.required[s] == problem_.required[t] &&
                                 graph_.storages[s].pinned ==
                                     graph_.storages[t].pinned;
                        });
    };
    return same(x.writes, y.writes) && same(x.mutates, y.mutates) &&
           same(x.reads, y.reads) && Need(a).size() == Need(b).size();
  }

  // Returns whether `o` reads what the op one period earlier reads, one block
  // later, in a stretch that begins at `begin`. Reads in opposite order are
  // checked later, once the runs are known.
  bool ReadsTheSame(OpId o, int32_t period, OpId begin) const {
    const auto now = Need(o), before = Need(o - period);
    for (size_t i = 0; i < now.size(); ++i) {
      const OpId maker = problem_.versions.maker[now[i]];
      const OpId previous = problem_.versions.maker[before[i]];
      if (maker - previous == period || now[i] == before[i]) continue;
      if (maker < previous && previous < begin) continue;
      if (previous < begin && o < begin + 2 * period) continue;
      return false;
    }
    return true;
  }

  // Adds the stretches around ops whose window last occurred at the same
  // distance. Returns false if every window occurs only once.
  bool FindStretches(int window) {
    uint64_t power = 1;
    for (int i = 0; i < window; ++i) power *= kBase;
    std::unordered_map<uint64_t, OpId> last;
    last.reserve(problem_.op_count);
    bool any = false;
    for (OpId o = 0; o + window <= problem_.op_count; ++o) {
      const uint64_t hash = hash_[o + window] - hash_[o] * power;
      const auto [it, fresh] = last.try_emplace(hash, o);
      if (fresh) continue;
      any = true;
      const int32_t period = o - it->second;
      it->second = o;
      AddStretch(o, period);
    }
    return any;
  }

  // Adds the stretches with this period around an op, unless they were added
  // before.
  void AddStretch(OpId o, int32_t period) {
    const auto [known, fresh] = seen_until_.try_emplace(period, 0);
    if (!fresh && o < known->second) return;
    // With a long period, a short match is not worth comparing.
    OpId first = o, end = o;
    while (end < problem_.op_count && IsSameOp(end, end - period)) ++end;
    while (first > period && first > known->second && first <= end &&
           IsSameOp(first - 1, first - 1 - period)) {
      --first;
    }
    known->second = std::max(end, o + 1);
    if (!IsLongEnough(end - first + period, period)) return;
    OpId begin = first - period;
    for (OpId at = first; at <= end; ++at) {
      if (at < end && ReadsTheSame(at, period, begin)) continue;
      if (IsLongEnough(at - begin, period)) {
        stretches_.push_back({begin, at, period});
      }
      begin = at + 1 - period;
    }
  }

  // Selects the stretches that cover the most ops, without overlaps.
  void Select() {
    std::sort(stretches_.begin(), stretches_.end(),
              [](const Stretch& a, const Stretch& b) {
                if (a.Covered() != b.Covered()) {
                  return a.Covered() > b.Covered();
                }
                if (a.period != b.period) return a.period < b.period;
                return a.begin < b.begin;
              });
    std::vector<uint8_t> taken(problem_.op_count, 0);
    for (const Stretch& s : stretches_) {
      OpId free = s.begin;
      for (OpId o = s.begin; o <= s.end; ++o) {
        if (o < s.end && taken[o] == 0) continue;
        if (IsLongEnough(o - free, s.period)) {
          const int32_t count = (o - free) / s.period;
          blocks_.runs.push_back({free, s.period, count});
          std::fill_n(taken.begin() + free, count * s.period, uint8_t{1});
        }
        free = o + 1;
      }
    }
    std::sort(
        blocks_.runs.begin(), blocks_.runs.end(),
        [](const BlockRun& a, const BlockRun& b) { return a.begin < b.begin; });
    blocks_.run_of.assign(problem_.op_count, -1);
    for (size_t r = 0; r < blocks_.runs.size(); ++r) Claim(r);
  }

  // Marks the ops of a run as belonging to it.
  void Claim(size_t r) {
    const BlockRun& run = blocks_.runs[r];
    std::fill_n(blocks_.run_of.begin() + run.begin, run.period * run.count,
                static_cast<int32_t>(r));
  }

  // Checks that what is read in opposite order comes from neighbouring
  // instances of one other run. Keeps the longest row of instances for which
  // that holds.
  void Verify(size_t r) {
    BlockRun& run = blocks_.runs[r];
    int32_t best_first = 0, best_count = 0, first = 0;
    std::unordered_map<int32_t, int> mirrored;
    for (int32_t i = 1; i <= run.count; ++i) {
      if (i < run.count && InstanceMirrors(run, i, first, mirrored)) continue;
      if (i - first > best_count) {
        best_first = first;
        best_count = i - first;
      }
      first = i;
    }
    std::fill_n(blocks_.run_of.begin() + run.begin, run.period * run.count, -1);
    run.begin += best_first * run.period;
    run.count = best_count;
    if (!IsLongEnough(int64_t{run.count} * run.period, run.period)) {
      run.count = 0;
      return;
    }
    int most = 0;
    for (const auto& [other, times] : mirrored) {
      if (times < most || (times == most && other > run.mirrors)) continue;
      most = times;
      run.mirrors = other;
    }
    Claim(r);
  }

  // Moves the beginning of the blocks to where the fewest bytes cross it.
  void Rotate(size_t r) {
    BlockRun& run = blocks_.runs[r];
    if (run.count == 0 || run.period == 1) return;
    const std::vector<Crossing> crossing = CrossingBytes(run);
    int32_t spare = 0;
    while (spare + 1 < run.period && IsSpare(run, run.end() + spare)) ++spare;
    int32_t best = 0;
    for (int32_t i = 1; i <= spare; ++i) {
      if (crossing[i] < crossing[best]) best = i;
    }
    if (crossing[best].chains > 0 && run.count > 2) {
      for (int32_t i = spare + 1; i < run.period; ++i) {
        if (crossing[i].chains == 0 &&
            (crossing[best].chains > 0 || crossing[i] < crossing[best])) {
          best = i;
        }
      }
    }
    if (best == 0) return;
    std::fill_n(blocks_.run_of.begin() + run.begin, run.period * run.count, -1);
    run.begin += best;
    if (best > spare) --run.count;
    Claim(r);
  }

  // Returns whether an op after the run continues its last instance.
  bool IsSpare(const BlockRun& run, OpId o) const {
    return o < problem_.op_count && blocks_.run_of[o] < 0 &&
           IsSameOp(o, o - run.period) &&
           ReadsTheSame(o, run.period, run.begin);
  }

  // What is made before an op and used at it or later.
  struct Crossing {
    int chains = 0;  // storages that are changed
    int64_t bytes = 0;
    bool operator<(const Crossing& other) const {
      return chains != other.chains ? chains < other.chains
                                    : bytes < other.bytes;
    }
  };

  // By position: what crosses it from the first instance, or from ops of the
  // second instance before it, until the end of the second. Later readers are
  // the same at every position.
  std::vector<Crossing> CrossingBytes(const BlockRun& run) const {
    const Versions& versions = problem_.versions;
    std::vector<Crossing> result(run.period);
    const OpId middle = run.begin + run.period;
    const OpId end = std::min<OpId>(run.end(), middle + 2 * run.period);
    for (OpId maker = run.begin; maker < middle + run.period; ++maker) {
      for (const ValueId v : versions.Make(maker)) {
        OpId last = maker;
        for (const OpId use : problem_.Uses(v)) {
          if (use < end) last = use;
        }
        const bool chain = versions.Last(versions.storage[v]) != v;
        const OpId from = std::max(maker + 1, middle);
        const OpId to = std::min(last, middle + run.period - 1);
        for (OpId o = from; o <= to; ++o) {
          result[o - middle].chains += chain ? 1 : 0;
          result[o - middle].bytes += problem_.BytesOf(v);
        }
      }
    }
    return result;
  }

  // Returns whether an instance reads, in opposite order, what neighbouring
  // instances of one other run made; counts such reads by run in `mirrored`.
  bool InstanceMirrors(const BlockRun& run, int32_t instance, int32_t first,
                       std::unordered_map<int32_t, int>& mirrored) const {
    const OpId begin = run.begin + instance * run.period;
    for (OpId o = begin; o < begin + run.period; ++o) {
      const auto now = Need(o), before = Need(o - run.period);
      for (size_t i = 0; i < now.size(); ++i) {
        const OpId maker = problem_.versions.maker[now[i]];
        const OpId previous = problem_.versions.maker[before[i]];
        if (maker >= previous) continue;
        const int32_t of = blocks_.run_of[maker];
        if (of < 0 || of != blocks_.run_of[previous] ||
            blocks_.PlaceOf(maker) != blocks_.PlaceOf(previous) ||
            blocks_.InstanceOf(maker) + 1 != blocks_.InstanceOf(previous)) {
          // The first instance may read values from outside any run, and so may
          // the last.
          if (instance == first + 1 && blocks_.run_of[previous] < 0) continue;
          if (instance == run.count - 1 && of < 0) continue;
          return false;
        }
        ++mirrored[of];
      }
    }
    return true;
  }

  // Removes runs without instances and renumbers the others.
  void DropEmpty() {
    std::vector<int32_t> renamed;
    std::vector<BlockRun> kept;
    for (const BlockRun& run : blocks_.runs) {
      renamed.push_back(run.count > 0 ? static_cast<int32_t>(kept.size()) : -1);
      if (run.count > 0) kept.push_back(run);
    }
    for (BlockRun& run : kept) {
      if (run.mirrors >= 0) run.mirrors = renamed[run.mirrors];
    }
    for (int32_t& run : blocks_.run_of) {
      if (run >= 0) run = renamed[run];
    }
    blocks_.runs = std::move(kept);
  }

  static constexpr uint64_t kBase = 0xd6e8feb86659fd93u;

  const Problem& problem_;
  const StepGraph& graph_;
  std::vector<uint64_t> hash_;
  // By period: where the last visited stretch ended.
  std::unordered_map<int32_t, OpId> seen_until_;
  std::vector<Stretch> stretches_;
  Blocks blocks_;
};

}  // namespace

Blocks FindBlocks(const Problem& problem) { return Finder(problem).Find(); }

}  // namespace reprise::planner
