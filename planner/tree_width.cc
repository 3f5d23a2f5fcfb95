// SPDX-License-Identifier: Apache-2.0
#include "planner/tree_width.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "planner/free_order.h"
#include "planner/squeeze.h"

namespace reprise::planner {
namespace {

class Recursion {
 public:
  Recursion(const Problem& problem, const Parts& parts,
            const TreeWidthOptions& options, Effort& effort)
      : problem_(problem),
        parts_(parts),
        effort_(effort),
        fits_bytes_(FitsBytes(problem, options)),
        most_execs_(static_cast<size_t>(problem.op_count) *
                    static_cast<size_t>(options.most_execs_per_op)),
        last_tick_(options.most_ticks > 0
                       ? effort.ticks() + options.most_ticks
                       : std::numeric_limits<int64_t>::max()),
        ran_(problem.op_count, 0),
        seen_(problem.op_count, 0),
        is_read_(problem.bytes.size(), 0),
        stays_(problem.bytes.size(), 0),
        present_(problem.bytes.size(), 0),
        kept_(problem.bytes.size(), 0),
        list_(problem.bytes.size(), 0),
        last_read_(problem.bytes.size(), 0),
        live_(problem.static_bytes) {
    for (const ValueId v : problem.versions.need) is_read_[StorageOf(v)] = 1;
    for (StorageId s = 0; s < static_cast<StorageId>(stays_.size()); ++s) {
      const ValueId v = problem.versions.first_value[s];
      const bool may_remake = problem.rules.may_remake[v] != 0 &&
                              problem.rules.may_rerun[MakerOf(s)] != 0;
      stays_[s] = problem.required[s] != 0 || (is_read_[s] != 0 && !may_remake);
    }
  }

  std::vector<OpId> Run() {
    Ops goals(problem_.op_count);
    std::iota(goals.begin(), goals.end(), 0);
    if (!Make(/*part=*/-1, goals, {})) return {};
    return execs_;
  }

 private:
  using Ops = std::vector<OpId>;
  using Storages = std::vector<StorageId>;

  static int64_t FitsBytes(const Problem& problem,
                           const TreeWidthOptions& options) {
    if (options.fits_percent <= 0) return -1;
    const __int128 dynamic = options.budget_bytes - problem.static_bytes;
    return problem.static_bytes +
           static_cast<int64_t>(dynamic * options.fits_percent / 100);
  }
  bool Spend() {
    effort_.Spend(looked_);
    looked_ = 0;
    return !effort_.Over() && effort_.ticks() < last_tick_ &&
           execs_.size() <= most_execs_;
  }
  StorageId StorageOf(ValueId v) const { return problem_.versions.storage[v]; }
  OpId MakerOf(StorageId s) const {
    return problem_.versions.maker[problem_.versions.first_value[s]];
  }

  void Hold(StorageId s) {
    if (present_[s] != 0) return;
    present_[s] = 1;
    live_ += problem_.bytes[s];
  }
  void Release(StorageId s) {
    if (present_[s] == 0 || stays_[s] != 0) return;
    present_[s] = 0;
    live_ -= problem_.bytes[s];
  }
  void Exec(OpId o) {
    ran_[o] = 1;
    execs_.push_back(o);
    for (const StorageId s : problem_.Writes(o)) {
      if (stays_[s] != 0) Hold(s);
    }
  }

  // The goals and all that has to run for them, in base order.
  Ops Closure(const Ops& goals) {
    Ops needed;
    const auto want = [&](OpId o) {
      if (seen_[o] != 0) return;
      seen_[o] = 1;
      needed.push_back(o);
    };
    for (const OpId o : goals) want(o);
    for (size_t i = 0; i < needed.size(); ++i) {
      for (const ValueId v : problem_.versions.Need(needed[i])) {
        if (present_[StorageOf(v)] == 0) want(problem_.versions.maker[v]);
        ++looked_;
      }
    }
    for (const OpId o : needed) seen_[o] = 0;
    std::sort(needed.begin(), needed.end());
    looked_ += 2 * static_cast<int64_t>(needed.size());
    return needed;
  }

  // Runs a closure in base order and holds `kept` of what it makes: where that
  // fits, or by all means.
  bool RunPlainly(const Ops& needed, const Storages& kept, bool by_all_means) {
    if (!by_all_means && !Fits(needed, kept)) return false;
    for (const OpId o : needed) Exec(o);
    for (const StorageId s : kept) Hold(s);
    return true;
  }
  // What a list of ops reads, and where in it last.
  void ListReads(const Ops& ops) {
    ++list_number_;
    for (size_t i = 0; i < ops.size(); ++i) {
      for (const ValueId v : problem_.versions.Need(ops[i])) {
        list_[StorageOf(v)] = list_number_;
        last_read_[StorageOf(v)] = static_cast<int32_t>(i);
        ++looked_;
      }
    }
  }
  bool Fits(const Ops& needed, const Storages& kept) {
    ListReads(needed);
    for (const StorageId s : kept) kept_[s] = 1;
    const auto dies_at = [&](StorageId s, size_t i) {
      return present_[s] == 0 && kept_[s] == 0 && stays_[s] == 0 &&
             (list_[s] != list_number_ ||
              last_read_[s] <= static_cast<int32_t>(i));
    };
    int64_t live = live_;
    bool fits = true;
    for (size_t i = 0; i < needed.size() && fits; ++i) {
      const auto writes = problem_.Writes(needed[i]);
      for (const StorageId s : writes) {
        if (present_[s] == 0) live += problem_.bytes[s];
      }
      fits = live + problem_.workspace[needed[i]] <= fits_bytes_;
      for (const StorageId s : writes) {
        if (dies_at(s, i)) live -= problem_.bytes[s];
      }
      for (const ValueId v : problem_.versions.Need(needed[i])) {
        if (dies_at(StorageOf(v), i)) live -= problem_.BytesOf(v);
      }
      ++looked_;
    }
    for (const StorageId s : kept) kept_[s] = 0;
    return fits;
  }

  // Runs what of the goals has not run and what makes `kept`, in a part whose
  // surroundings are present, and holds `kept`.
  bool Make(int32_t part, const Ops& goals, const Storages& kept) {
    const Ops needed = Closure(Open(goals, kept));
    if (!Spend()) return false;
    if (RunPlainly(needed, kept, /*by_all_means=*/false)) return true;

    // By part below: its goals, from the last to the next.
    std::map<int32_t, Ops> waiting;
    for (size_t i = goals.size(); i-- > 0;) {
      const int32_t below = parts_.Below(part, goals[i]);
      if (below != part) waiting[below].push_back(goals[i]);
    }
    for (const StorageId s : kept) {
      const int32_t below = parts_.Below(part, MakerOf(s));
      if (below != part) waiting.try_emplace(below);
    }
    Storages held;
    for (const OpId z : needed) {
      if (part < 0 || parts_.of[z] != part) continue;
      Storages inputs;
      if (!MakeInputs(part, z, kept, waiting, inputs)) return false;
      Exec(z);
      for (const StorageId s : problem_.Writes(z)) {
        if (is_read_[s] == 0 || present_[s] != 0) continue;
        Hold(s);
        held.push_back(s);
      }
      for (const StorageId s : inputs) {
        if (!Has(kept, s)) Release(s);
      }
    }
    for (auto& [below, open] : waiting) std::reverse(open.begin(), open.end());
    while (!waiting.empty()) {
      // What is left to run reads no more than this.
      Ops left;
      for (const auto& [below, open] : waiting) {
        left.insert(left.end(), open.begin(), open.end());
      }
      ListReads(Closure(Open(left, kept)));
      std::erase_if(held, [&](StorageId s) {
        if (list_[s] == list_number_ || Has(kept, s)) return false;
        Release(s);
        return true;
      });
      const auto next = waiting.begin();
      const auto [below, open] = std::move(*next);
      waiting.erase(next);
      if (!MakeBelow(part, below, open, kept)) return false;
    }
    for (const StorageId s : held) {
      if (!Has(kept, s)) Release(s);
    }
    return true;
  }

  static bool Has(const Storages& all, StorageId s) {
    return std::find(all.begin(), all.end(), s) != all.end();
  }
  // Goals that have not run, or whose outputs are to be kept and are not there.
  Ops Open(const Ops& goals, const Storages& kept) {
    Ops open;
    for (const OpId o : goals) {
      if (ran_[o] == 0) open.push_back(o);
    }
    for (const StorageId s : kept) {
      if (present_[s] == 0) open.push_back(MakerOf(s));
    }
    looked_ += static_cast<int64_t>(goals.size());
    return open;
  }

  // What z reads, in the parts below; before z, the goals that come before it
  // in base order. Appends what was made for it.
  bool MakeInputs(int32_t part, OpId z, const Storages& kept,
                  std::map<int32_t, Ops>& waiting, Storages& inputs) {
    std::map<int32_t, Storages> wanted;
    for (const ValueId v : problem_.versions.Need(z)) {
      const StorageId s = StorageOf(v);
      if (present_[s] != 0) continue;
      const int32_t below = parts_.Below(part, problem_.versions.maker[v]);
      wanted[below].push_back(s);
      inputs.push_back(s);
    }
    for (auto& [below, open] : waiting) {
      Ops before;
      for (; !open.empty() && open.back() < z; open.pop_back()) {
        if (ran_[open.back()] == 0) before.push_back(open.back());
      }
      Storages own;
      if (const auto found = wanted.find(below); found != wanted.end()) {
        own = std::move(found->second);
        wanted.erase(found);
      }
      if (before.empty() && own.empty()) continue;
      for (const StorageId s : kept) {
        // Made again on the way: it may as well stay.
        if (!Has(own, s) &&
            std::binary_search(before.begin(), before.end(), MakerOf(s))) {
          own.push_back(s);
        }
      }
      if (!MakeBelow(part, below, before, own)) return false;
    }
    for (const auto& [below, own] : wanted) {
      if (!MakeBelow(part, below, {}, own)) return false;
    }
    return true;
  }

  bool MakeBelow(int32_t part, int32_t below, const Ops& goals,
                 const Storages& kept) {
    Storages own;
    for (const StorageId s : kept) {
      if (parts_.Below(part, MakerOf(s)) == below) own.push_back(s);
    }
    const bool is_below =
        below != part && below >= 0 && parts_.parent[below] == part;
    if (is_below) return Make(below, goals, own);
    // A part has no edges but to separators above it: not met.
    return RunPlainly(Closure(Open(goals, own)), own, /*by_all_means=*/true);
  }

  const Problem& problem_;
  const Parts& parts_;
  Effort& effort_;
  const int64_t fits_bytes_;
  const size_t most_execs_;
  const int64_t last_tick_;

  std::vector<uint8_t> ran_, seen_;       // by op
  std::vector<uint8_t> is_read_, stays_;  // by storage; stays: for good
  std::vector<uint8_t> present_, kept_;   // by storage
  std::vector<int64_t> list_;             // by storage: the list that reads it
  std::vector<int32_t> last_read_;        // and where in that list it does last
  int64_t list_number_ = 0;
  std::vector<OpId> execs_;
  int64_t live_;
  int64_t looked_ = 0;
};

}  // namespace

bool TreeWidthApplies(const Problem& problem) {
  const int most = problem.capabilities.max_runs;
  return FreeOrder::Applies(problem) && (most == 0 || most > 2);
}

Parts PartsOf(const Problem& problem, int64_t most_ticks, Effort& effort) {
  std::vector<std::pair<int32_t, int32_t>> edges;
  std::vector<int32_t> joined(problem.op_count);
  std::iota(joined.begin(), joined.end(), 0);
  const auto root = [&](int32_t v) {
    for (; joined[v] != v; v = joined[v]) joined[v] = joined[joined[v]];
    return v;
  };
  const auto add = [&](OpId a, OpId b) {
    edges.emplace_back(a, b);
    joined[root(a)] = root(b);
  };
  for (OpId o = 0; o < problem.op_count; ++o) {
    for (const ValueId v : problem.versions.Need(o)) {
      add(problem.versions.maker[v], o);
    }
  }
  // Components hang together where they meet in base order, so that what
  // depends on nothing has its place too.
  for (OpId o = 1; o < problem.op_count; ++o) {
    if (root(o) != root(o - 1)) add(o - 1, o);
  }
  const TreeDecomposition tree = Decompose(problem.op_count, edges, most_ticks);
  effort.Spend(tree.ticks + 2 * static_cast<int64_t>(edges.size()));
  return TakeApart(tree);
}

std::vector<OpId> TreeWidthExecs(const Problem& problem, const Parts& parts,
                                 const TreeWidthOptions& options,
                                 Effort& effort) {
  const std::vector<OpId> pebbling =
      Recursion(problem, parts, options, effort).Run();
  if (pebbling.empty()) return {};
  return InBaseOrder(problem, pebbling, effort, options.most_ticks);
}

}  // namespace reprise::planner
