// SPDX-License-Identifier: Apache-2.0
//
// GetKernels: what ran on the device in the newest traced step, stream by stream,
// with neighbours joined to what a screen can tell apart.
#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/service/calls/handlers.h"
#include "server/service/memory/step_cache.h"

namespace reprise::server {

namespace {

constexpr size_t kMostLanes = 32;
constexpr size_t kMostNames = 20;

// The kernels of one stream within the window, joined column by column.
class LaneWriter {
 public:
  LaneWriter(const RecordedStep& step, int64_t column_ns, int64_t from_ns)
      : step_(step), column_ns_(column_ns), from_ns_(from_ns) {}

  // In order of start; `from` and `to` are cut to the window.
  void Add(const RecordedKernel& kernel, int64_t from, int64_t to) {
    ++lane_.kernels;
    lane_.busy_ns += std::max<int64_t>(to - std::max(from, busy_until_), 0);
    const int64_t column = (from - from_ns_) / column_ns_;
    if (open_ && column > last_column_) Close();
    if (!open_) {
      open_ = true;
      span_ = {.from_ns = from};
    }
    span_.to_ns = std::max(span_.to_ns, to);
    span_.busy_ns += std::max<int64_t>(to - std::max(from, busy_until_), 0);
    ++span_.kernels;
    if (span_.kernels == 1 || kernel.dur_ns > span_.longest_ns) {
      span_.longest_ns = kernel.dur_ns;
      span_.name = kernel.name;
    }
    busy_until_ = std::max(busy_until_, to);
    last_column_ = (span_.to_ns - from_ns_) / column_ns_;
    // A kernel that is wider than a column stands alone.
    if (to - from >= 2 * column_ns_) Close();
  }

  int64_t busy_ns() const { return lane_.busy_ns; }

  void Finish(uint32_t device, uint64_t stream, v1::KernelLane& to) {
    if (open_) Close();
    to.set_device(device);
    to.set_stream(stream);
    to.set_kernels(lane_.kernels);
    to.set_busy_ns(lane_.busy_ns);
    for (const Span& span : spans_) {
      v1::KernelSpan& one = *to.add_spans();
      one.set_from_ns(span.from_ns);
      one.set_to_ns(span.to_ns);
      one.set_busy_ns(span.busy_ns);
      one.set_kernels(span.kernels);
      one.set_name(step_.Text(span.name));
      one.set_longest_ns(span.longest_ns);
    }
  }

 private:
  struct Span {
    int64_t from_ns = 0, to_ns = 0, busy_ns = 0, longest_ns = 0;
    uint32_t kernels = 0, name = 0;
  };

  void Close() {
    spans_.push_back(span_);
    open_ = false;
  }

  const RecordedStep& step_;
  const int64_t column_ns_;
  const int64_t from_ns_;
  struct {
    uint32_t kernels = 0;
    int64_t busy_ns = 0;
  } lane_;
  bool open_ = false;
  Span span_;
  int64_t busy_until_ = INT64_MIN;
  int64_t last_column_ = 0;
  std::vector<Span> spans_;
};

v1::Kernels DrawKernels(const RecordedStep& step, const FoldWindow& window) {
  v1::Kernels answer;
  const bool whole = window.from_ns == 0 && window.to_ns == 0;
  const int64_t from_ns = window.from_ns;
  const int64_t to_ns = whole ? step.step_ns : window.to_ns;
  const int64_t column_ns =
      std::max<int64_t>((to_ns - from_ns) / window.columns, 1);
  answer.set_step(step.step);
  answer.set_from_ns(from_ns);
  answer.set_to_ns(to_ns);
  answer.set_step_ns(step.step_ns);
  answer.set_incomplete(step.incomplete);

  std::map<std::pair<uint32_t, uint64_t>, LaneWriter> lanes;
  struct Sum {
    uint32_t kernels = 0;
    int64_t busy_ns = 0;
  };
  std::unordered_map<uint32_t, Sum> names;
  int64_t busy_until = INT64_MIN, busy_ns = 0;
  for (const RecordedKernel& kernel : step.kernels) {
    if (kernel.start_ns > to_ns) break;
    const int64_t from = std::max(kernel.start_ns, from_ns);
    const int64_t to = std::min(kernel.start_ns + kernel.dur_ns, to_ns);
    if (to < from) continue;
    lanes.try_emplace({kernel.device, kernel.stream}, step, column_ns, from_ns)
        .first->second.Add(kernel, from, to);
    Sum& sum = names[kernel.name];
    ++sum.kernels;
    sum.busy_ns += to - from;
    answer.set_kernels(answer.kernels() + 1);
    busy_ns += std::max<int64_t>(to - std::max(from, busy_until), 0);
    busy_until = std::max(busy_until, to);
  }
  answer.set_busy_ns(busy_ns);

  std::vector<std::pair<std::pair<uint32_t, uint64_t>, LaneWriter*>> order;
  for (auto& [key, lane] : lanes) order.emplace_back(key, &lane);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) {
                     return a.second->busy_ns() > b.second->busy_ns();
                   });
  for (size_t i = 0; i < order.size() && i < kMostLanes; ++i) {
    order[i].second->Finish(order[i].first.first, order[i].first.second,
                            *answer.add_lanes());
  }
  if (order.size() > kMostLanes) {
    answer.set_folded_lanes(static_cast<uint32_t>(order.size() - kMostLanes));
  }

  std::vector<std::pair<uint32_t, Sum>> sums(names.begin(), names.end());
  std::sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) {
    return a.second.busy_ns != b.second.busy_ns
               ? a.second.busy_ns > b.second.busy_ns
               : a.first < b.first;
  });
  for (size_t i = 0; i < sums.size() && i < kMostNames; ++i) {
    v1::KernelSum& one = *answer.add_longest();
    one.set_name(step.Text(sums[i].first));
    one.set_kernels(sums[i].second.kernels);
    one.set_busy_ns(sums[i].second.busy_ns);
  }
  if (sums.size() > kMostNames) {
    answer.set_folded_names(static_cast<uint32_t>(sums.size() - kMostNames));
  }
  return answer;
}

}  // namespace

StatusOr<v1::Kernels> GetKernels(Services& services,
                                 const v1::GetKernelsRequest& request) {
  ASSIGN_OR_RETURN(
      const auto step,
      services.steps.Of(services.store, request.run_id(), request.planned()));
  const FoldWindow window{.from_ns = request.t0_ns(),
                          .to_ns = request.t1_ns(),
                          .columns = request.width_px() == 0
                                         ? kDefaultColumns
                                         : request.width_px()};
  RETURN_IF_ERROR(CheckWindow(window, step->step_ns));
  return DrawKernels(*step, window);
}

}  // namespace reprise::server
