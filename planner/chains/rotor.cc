// SPDX-License-Identifier: Apache-2.0
#include "planner/chains/rotor.h"

#include <algorithm>
#include <cassert>

namespace reprise::planner {
namespace {

// Returns C(n, k), or `most` if it is larger.
int64_t Binomial(int64_t n, int64_t k, int64_t most) {
  if (k < 0 || n < k) return 0;
  k = std::min(k, n - k);
  __int128 value = 1;
  for (int64_t i = 1; i <= k; ++i) {
    value = value * (n - k + i) / i;
    if (value > most) return most;
  }
  return static_cast<int64_t>(value);
}

}  // namespace

Rotor::Rotor(const RotorChain& chain, int64_t slot_bytes, int slots,
             const std::function<bool()>& should_stop)
    : chain_(chain),
      slot_bytes_(std::max<int64_t>(1, slot_bytes)),
      slots_(std::max(0, slots)) {
  const int length = static_cast<int>(chain.stages.size());
  forward_sum_.assign(1, 0);
  for (const RotorStage& stage : chain.stages) {
    forward_sum_.push_back(forward_sum_.back() + stage.forward_ns);
  }
  sweep_.assign(length, std::vector<int>(length + 1, 0));
  for (int a = 0; a < length; ++a) {
    int most = 0;
    for (int i = a; i < length; ++i) {
      const RotorStage& stage = chain.stages[i];
      const int64_t before = i > a ? chain.stages[i - 1].output_bytes : 0;
      most = std::max(most, SlotsOf(before) + SlotsOf(stage.output_bytes) +
                                SlotsOf(stage.forward_temporary_bytes));
      sweep_[a][i + 1] = most;
    }
  }
  table_.resize(static_cast<size_t>(length) * (length + 1) / 2);
  for (int span = 0; span < length; ++span) {
    for (int a = 0; a + span < length; ++a) {
      interrupted_ = interrupted_ || (should_stop && should_stop());
      if (interrupted_) return;
      std::vector<int64_t>& row = table_[Index(a, a + span)];
      row.resize(slots_ + 1);
      for (int m = 0; m <= slots_; ++m) row[m] = Best(a, a + span, m).time_ns;
      ticks_ += static_cast<int64_t>(slots_ + 1) * (span + 1);
    }
  }
}

int Rotor::SlotsOf(int64_t bytes) const {
  const int64_t slots = (bytes + slot_bytes_ - 1) / slot_bytes_;
  return static_cast<int>(std::min<int64_t>(slots, 1 << 28));
}

size_t Rotor::Index(int a, int b) const {
  // Pairs a <= b, ordered by b.
  return static_cast<size_t>(b) * (b + 1) / 2 + a;
}

int64_t Rotor::At(int a, int b, int m) const {
  return m < 0 ? kImpossible : table_[Index(a, b)][m];
}

int Rotor::Need(int a, int b, const RotorOption& option) const {
  const int64_t before =
      a > 0 ? chain_.stages[a - 1].gradient_bytes : chain_.input_gradient_bytes;
  const int kept = SlotsOf(option.kept_bytes);
  return std::max(SlotsOf(chain_.stages[b].gradient_bytes) + kept +
                      SlotsOf(option.forward_temporary_bytes),
                  kept + SlotsOf(chain_.stages[a].gradient_bytes) +
                      SlotsOf(before) +
                      SlotsOf(option.backward_temporary_bytes));
}

Rotor::Choice Rotor::Best(int a, int b, int m) const {
  Choice best;
  const std::vector<RotorOption>& options = chain_.stages[a].options;
  for (int32_t q = 0; q < static_cast<int32_t>(options.size()); ++q) {
    if (m < Need(a, b, options[q])) continue;
    const int64_t inside =
        a == b ? 0 : At(a + 1, b, m - SlotsOf(options[q].kept_bytes));
    if (inside == kImpossible) continue;
    const int64_t time =
        options[q].forward_ns + inside + options[q].backward_ns;
    if (time < best.time_ns) best = {.time_ns = time, .option = q};
  }
  const int gradient = SlotsOf(chain_.stages[b].gradient_bytes);
  for (int j = a + 1; j <= b; ++j) {
    if (m < gradient + sweep_[a][j]) break;  // sweep_ only grows with j
    const int64_t right =
        At(j, b, m - SlotsOf(chain_.stages[j - 1].output_bytes));
    const int64_t left = At(a, j - 1, m);
    if (right == kImpossible || left == kImpossible) continue;
    const int64_t time = forward_sum_[j] - forward_sum_[a] + right + left;
    if (time < best.time_ns) best = {.time_ns = time, .split = j};
  }
  return best;
}

int64_t Rotor::TimeNs(int64_t bytes) const {
  if (chain_.stages.empty()) return 0;
  if (bytes < 0 || interrupted_) return kImpossible;
  const int m =
      static_cast<int>(std::min<int64_t>(bytes / slot_bytes_, slots_));
  return At(0, static_cast<int>(chain_.stages.size()) - 1, m);
}

std::vector<RotorStep> Rotor::Steps(int64_t bytes) const {
  assert(TimeNs(bytes) != kImpossible);
  using Kind = RotorStep::Kind;
  std::vector<RotorStep> steps;
  if (chain_.stages.empty()) return steps;
  // A part of the chain to be solved, or a backward that must follow it.
  struct Task {
    int a, b, m;
    int32_t option = -1;  // >= 0: backward of a
  };
  std::vector<Task> tasks = {
      {0, static_cast<int>(chain_.stages.size()) - 1,
       static_cast<int>(std::min<int64_t>(bytes / slot_bytes_, slots_))}};
  while (!tasks.empty()) {
    const Task task = tasks.back();
    tasks.pop_back();
    if (task.option >= 0) {
      steps.push_back({Kind::kBackward, task.a, task.option});
      continue;
    }
    const Choice choice = Best(task.a, task.b, task.m);
    if (choice.option >= 0) {
      steps.push_back({Kind::kForwardKeeping, task.a, choice.option});
      tasks.push_back({task.a, task.a, 0, choice.option});
      if (task.a < task.b) {
        const int64_t kept =
            chain_.stages[task.a].options[choice.option].kept_bytes;
        tasks.push_back({task.a + 1, task.b, task.m - SlotsOf(kept)});
      }
      continue;
    }
    const int j = choice.split;
    for (int i = task.a; i < j; ++i) {
      steps.push_back({Kind::kForward, i, 0});
    }
    tasks.push_back({task.a, j - 1, task.m});
    tasks.push_back(
        {j, task.b, task.m - SlotsOf(chain_.stages[j - 1].output_bytes)});
  }
  return steps;
}

int64_t RevolveForwardSteps(int64_t length, int64_t slots) {
  if (length <= 1) return 0;
  if (slots < 1) return Rotor::kImpossible;
  const int64_t most = INT64_MAX / 4;
  int64_t r = 0;
  while (Binomial(slots + r, slots, most) < length) ++r;
  return r * length - Binomial(slots + r, slots + 1, most);
}

std::vector<RotorStep> RevolveSteps(int length, int slots) {
  using Kind = RotorStep::Kind;
  std::vector<RotorStep> steps;
  struct Part {
    int begin, length, slots;
  };
  std::vector<Part> parts = {{0, length, std::max(1, slots)}};
  while (!parts.empty()) {
    const Part part = parts.back();
    parts.pop_back();
    if (part.length == 0) continue;
    if (part.length == 1) {
      steps.push_back({Kind::kForwardKeeping, part.begin, 0});
      steps.push_back({Kind::kBackward, part.begin, 0});
      continue;
    }
    int64_t j = part.length - 1;
    if (part.slots > 1) {
      // Any j is optimal with beta(s, r-2) <= j <= beta(s, r-1) and
      // beta(s-1, r-1) <= l - j <= beta(s-1, r); beta(s, r) = C(s + r, s).
      const int64_t s = part.slots;
      const int64_t most = int64_t{1} << 40;
      int64_t r = 0;
      while (Binomial(s + r, s, most) < part.length) ++r;
      const int64_t at_least =
          std::max(part.length - Binomial(s - 1 + r, s - 1, most),
                   r >= 2 ? Binomial(s + r - 2, s, most) : 1);
      j = std::clamp<int64_t>(at_least, 1, part.length - 1);
    }
    for (int i = 0; i < j; ++i) {
      steps.push_back({Kind::kForward, part.begin + i, 0});
    }
    const int step = static_cast<int>(j);
    parts.push_back({part.begin, step, part.slots});
    parts.push_back(
        {part.begin + step, part.length - step, std::max(1, part.slots - 1)});
  }
  return steps;
}

}  // namespace reprise::planner
