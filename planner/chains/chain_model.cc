// SPDX-License-Identifier: Apache-2.0
#include "planner/chains/chain_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace reprise::planner {

ChainModel::ChainModel(const Problem& problem, const Chain& chain)
    : problem_(problem),
      chain_(chain),
      stage_of_(StagesOfOps(problem, chain)),
      forward_(chain.stage_count()),
      backward_(chain.stage_count()),
      dropped_(chain.stage_count()) {
  for (OpId o = 0; o < problem.op_count; ++o) {
    (o < chain.boundary ? forward_ : backward_)[stage_of_[o]].push_back(o);
  }
  FindGradients();
  rotor_.input_gradient_bytes = gradient_before_.front();
  for (int i = 0; i < chain.stage_count(); ++i) AddStage(i);
}

int64_t ChainModel::FixedBytes() const {
  int64_t bytes = problem_.static_bytes;
  for (ValueId v = 0; v < problem_.versions.value_count(); ++v) {
    if (problem_.versions.maker[v] >= chain_.boundary ||
        problem_.rules.may_remake[v] != 0) {
      continue;
    }
    const auto uses = problem_.Uses(v);
    if (!uses.empty() && uses.back() >= chain_.boundary) {
      bytes += problem_.BytesOf(v);
    }
  }
  return bytes;
}

std::vector<OpId> ChainModel::Execs(const std::vector<RotorStep>& steps) const {
  std::vector<OpId> execs;
  std::vector<uint8_t> ran(problem_.op_count, 0);
  const size_t most = kMostExecsPerOp * static_cast<size_t>(problem_.op_count);
  const auto run = [&](OpId o) {
    if (ran[o] != 0 && problem_.rules.may_rerun[o] == 0) return;
    ran[o] = 1;
    execs.push_back(o);
  };
  for (const RotorStep& step : steps) {
    if (execs.size() > most) return {};
    if (step.kind != RotorStep::Kind::kBackward) {
      for (const OpId o : forward_[step.stage]) run(o);
      continue;
    }
    for (const OpId o : dropped_[step.stage][step.option]) run(o);
    for (const OpId o : backward_[step.stage]) run(o);
  }
  return execs;
}

void ChainModel::FindGradients() {
  const int count = problem_.op_count;
  std::vector<int64_t> alive(count + 1, 0);
  for (ValueId v = 0; v < problem_.versions.value_count(); ++v) {
    const OpId maker = problem_.versions.maker[v];
    if (maker < chain_.boundary || !problem_.versions.IsFirst(v)) continue;
    const ValueId last_version =
        problem_.versions.Last(problem_.versions.storage[v]);
    OpId last = maker;
    for (ValueId u = v; u <= last_version; ++u) {
      const auto uses = problem_.Uses(u);
      if (!uses.empty()) last = std::max(last, uses.back());
    }
    alive[maker] += problem_.BytesOf(v);
    if (last < count) alive[last] -= problem_.BytesOf(v);
  }
  // alive[o]: bytes after op o.
  std::partial_sum(alive.begin(), alive.end(), alive.begin());
  gradient_before_.assign(chain_.stage_count() + 1, 0);
  int64_t now = 0;
  for (int i = chain_.stage_count(); i-- > 0;) {
    gradient_before_[i + 1] = now;
    if (!backward_[i].empty()) now = alive[backward_[i].back()];
  }
  gradient_before_[0] = now;
  alive_ = std::move(alive);
}

int64_t ChainModel::ForwardPeak(int stage,
                                const std::vector<uint8_t>& kept) const {
  int64_t live = 0, peak = 0;
  std::vector<std::pair<OpId, int64_t>> ends;
  for (const OpId o : forward_[stage]) {
    for (const StorageId s : problem_.Writes(o)) {
      const ValueId first = problem_.versions.first_value[s];
      if (problem_.rules.may_remake[first] == 0) continue;
      live += problem_.bytes[s];
      OpId last = o;
      for (ValueId v = first; v <= problem_.versions.Last(s); ++v) {
        last = std::max(last, LastForwardUse(problem_, v));
      }
      if (kept[s] == 0 && last <= chain_.ends[stage]) {
        ends.emplace_back(last, problem_.bytes[s]);
      }
    }
    peak = std::max(peak, live + problem_.workspace[o]);
    for (auto& [last, bytes] : ends) {
      if (last > o || bytes == 0) continue;
      live -= bytes;
      bytes = 0;
    }
  }
  return peak;
}

void ChainModel::AddStage(int i) {
  const Versions& versions = problem_.versions;
  RotorStage stage{.output_bytes = chain_.crossing_bytes[i],
                   .gradient_bytes = gradient_before_[i + 1]};
  if (i + 1 == chain_.stage_count()) stage.output_bytes = 0;
  int64_t backward_ns = 0, backward_peak = 0;
  for (const OpId o : forward_[i]) {
    stage.forward_ns += problem_.rules.rerun_ns[o];
  }
  for (const OpId o : backward_[i]) {
    backward_ns += problem_.time_ns[o];
    int64_t bytes = (o > 0 ? alive_[o - 1] : 0) + problem_.workspace[o];
    for (const StorageId s : problem_.Writes(o)) bytes += problem_.bytes[s];
    backward_peak = std::max(backward_peak, bytes);
  }
  const int64_t backward_extra = std::max<int64_t>(
      0, backward_peak - gradient_before_[i + 1] - gradient_before_[i]);

  // What the backward reads from this stage, costliest per byte first.
  struct Saved {
    StorageId storage;
    OpId maker;
    double worth;
    bool crosses;
  };
  std::vector<Saved> saved;
  for (const OpId o : forward_[i]) {
    for (const StorageId s : problem_.Writes(o)) {
      const ValueId v = versions.Last(s);
      const auto uses = problem_.Uses(v);
      if (problem_.rules.may_remake[v] == 0 || uses.empty()) continue;
      const bool crosses = LastForwardUse(problem_, v) > chain_.ends[i];
      if (uses.back() < chain_.boundary && !crosses) continue;
      saved.push_back({s, o,
                       static_cast<double>(problem_.rules.rerun_ns[o] + 1) /
                           static_cast<double>(problem_.bytes[s] + 1),
                       crosses});
    }
  }
  std::stable_sort(saved.begin(), saved.end(),
                   [](const Saved& a, const Saved& b) {
                     if (a.crosses != b.crosses) return a.crosses;
                     return a.worth > b.worth;
                   });
  int64_t inner = 0;
  for (const Saved& value : saved) {
    if (!value.crosses) inner += problem_.bytes[value.storage];
  }
  const std::vector<uint8_t> nothing(problem_.bytes.size(), 0);
  stage.forward_temporary_bytes =
      std::max<int64_t>(0, ForwardPeak(i, nothing) - stage.output_bytes);
  for (const int64_t limit : {inner, inner / 2, int64_t{0}}) {
    RotorOption option{.forward_ns = stage.forward_ns,
                       .backward_ns = backward_ns,
                       .kept_bytes = stage.output_bytes};
    std::vector<uint8_t> kept(problem_.bytes.size(), 0);
    std::vector<OpId> again;
    int64_t sum = 0, dropped_bytes = 0;
    for (const Saved& value : saved) {
      const int64_t bytes = problem_.bytes[value.storage];
      if (value.crosses) {
        kept[value.storage] = 1;
        continue;
      }
      if (sum + bytes <= limit) {
        sum += bytes;
        kept[value.storage] = 1;
        option.kept_bytes += bytes;
      } else {
        dropped_bytes += bytes;
        again.push_back(value.maker);
      }
    }
    if (limit < inner && again.empty()) continue;
    AddMakers(i, kept, again);
    for (const OpId o : again) {
      option.backward_ns += problem_.rules.rerun_ns[o];
    }
    option.forward_temporary_bytes =
        std::max<int64_t>(0, ForwardPeak(i, kept) - option.kept_bytes);
    option.backward_temporary_bytes =
        std::max(backward_extra + dropped_bytes,
                 again.empty() ? 0 : stage.forward_temporary_bytes);
    stage.options.push_back(option);
    dropped_[i].push_back(std::move(again));
  }
  rotor_.stages.push_back(std::move(stage));
}

void ChainModel::AddMakers(int stage, const std::vector<uint8_t>& kept,
                           std::vector<OpId>& again) const {
  const Versions& versions = problem_.versions;
  const OpId begin = stage == 0 ? 0 : chain_.ends[stage - 1] + 1;
  std::vector<uint8_t> in(chain_.ends[stage] - begin + 1, 0);
  for (const OpId o : again) in[o - begin] = 1;
  for (OpId o = chain_.ends[stage]; o >= begin; --o) {
    if (in[o - begin] == 0) continue;
    for (const ValueId u : versions.Need(o)) {
      const OpId maker = versions.maker[u];
      if (maker < begin || kept[versions.storage[u]] != 0 ||
          problem_.rules.may_remake[u] == 0) {
        continue;
      }
      in[maker - begin] = 1;
    }
  }
  again.clear();
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i] != 0) again.push_back(begin + static_cast<OpId>(i));
  }
}

}  // namespace reprise::planner
