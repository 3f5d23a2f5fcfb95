// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "server/service/runs/verdict.h"

namespace reprise::server {

void StepLog::Add(const v1::StepReport& step, bool over_budget) {
  if (!steps_.empty() && step.step() <= steps_.back().number) return;
  steps_.push_back({.number = step.step(),
                    .peak_bytes = step.peak_bytes(),
                    .time_ns = step.step_ns(),
                    .planned = step.planned(),
                    .over_budget = over_budget,
                    .out_of_memory = step.oom(),
                    .traced = step.window()});
}

void StepLog::Add(const v1::VerifyReport& check) {
  const auto found = std::lower_bound(
      steps_.begin(), steps_.end(), check.step(),
      [](const Step& step, uint64_t number) { return step.number < number; });
  if (found == steps_.end() || found->number != check.step()) return;
  ++found->checks;
  found->differing +=
      check.failed() || check.differing() > 0 || !check.bitwise();
}

v1::StepBuckets StepLog::Fold(uint64_t from, uint64_t to,
                              size_t buckets) const {
  const auto before = [](const Step& step, uint64_t number) {
    return step.number < number;
  };
  const auto first =
      std::lower_bound(steps_.begin(), steps_.end(), from, before);
  const auto end = std::upper_bound(
      first, steps_.end(), to,
      [](uint64_t number, const Step& step) { return number < step.number; });
  const auto count = static_cast<size_t>(end - first);
  v1::StepBuckets made;
  made.set_steps(count);
  made.set_planned_steps(static_cast<uint64_t>(std::count_if(
      first, end, [](const Step& step) { return step.planned; })));
  if (count == 0) return made;
  const size_t each = (count + buckets - 1) / buckets;
  const Step* const all = &*first;
  for (size_t at = 0; at < count; at += each) {
    AddBucket(all + at, all + std::min(at + each, count), made);
  }
  return made;
}

void StepLog::AddBucket(const Step* first, const Step* end,
                        v1::StepBuckets& to) {
  uint32_t planned = 0, over = 0, oom = 0, traced = 0, checks = 0,
           differing = 0;
  int64_t plain_peak = 0, planned_peak = 0, longest = 0;
  for (const Step* step = first; step != end; ++step) {
    int64_t& peak = step->planned ? planned_peak : plain_peak;
    peak = std::max(peak, step->peak_bytes);
    longest = std::max(longest, step->time_ns);
    planned += step->planned;
    over += step->over_budget;
    oom += step->out_of_memory;
    traced += step->traced;
    checks += step->checks;
    differing += step->differing;
  }
  to.add_first(first->number);
  to.add_last((end - 1)->number);
  to.add_plain(static_cast<uint32_t>(end - first) - planned);
  to.add_planned(planned);
  to.add_plain_peak_bytes(plain_peak);
  to.add_planned_peak_bytes(planned_peak);
  to.add_plain_ns(MedianTime(first, end, /*planned=*/false));
  to.add_planned_ns(MedianTime(first, end, /*planned=*/true));
  to.add_longest_ns(longest);
  to.add_over_budget(over);
  to.add_out_of_memory(oom);
  to.add_traced(traced);
  to.add_checks(checks);
  to.add_checks_differing(differing);
}

int64_t StepLog::MedianTime(const Step* first, const Step* end, bool planned) {
  std::vector<int64_t> times, others;
  for (const Step* step = first; step != end; ++step) {
    if (step->planned != planned) continue;
    (Representative(*step) ? times : others).push_back(step->time_ns);
  }
  if (times.empty()) times.swap(others);
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace reprise::server
