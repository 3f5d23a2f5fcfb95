// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "base/str_cat.h"
#include "server/collect/plan_relay.h"

namespace reprise::server {

namespace {

constexpr uint64_t kLargestNs = uint64_t{1} << 52;
constexpr char kRestOfStep[] = "reprise.step_begin";

// How much earlier than its op a kernel may seem to begin: the device's times
// are interpolated between readings of two clocks.
constexpr uint64_t kClockErrorNs = 1'000'000;
// How long after the step's last op a kernel may end, beyond the time of two
// steps: what is queued then is work of this step and of the one before.
constexpr uint64_t kLateNs = 60'000'000'000;
// One op in so many may have kernels that lie elsewhere.
constexpr uint64_t kOneDisplacedIn = 20;

// The sums over one op of the graph.
struct Sum {
  bool missing = false;  // one of its ids is unknown
  uint64_t begin_ns = 0;
  uint64_t kernel_ns = 0;
  uint64_t kernels = 0;
  int64_t workspace_bytes = -1;
  uint64_t first_ns = 0, last_ns = 0;
};

Sum Total(const OpMeasurement& measured, const v1::Op& op) {
  Sum sum;
  for (const uint64_t id : op.agent_ops()) {
    const auto found = measured.ops.find(id);
    if (found == measured.ops.end() || found->second.begin_ns == 0) {
      sum.missing = true;
      continue;
    }
    const OpFigures& figures = found->second;
    if (sum.begin_ns == 0) sum.begin_ns = figures.begin_ns;
    sum.begin_ns = std::min(sum.begin_ns, figures.begin_ns);
    sum.kernel_ns = std::min(sum.kernel_ns + figures.kernel_ns, kLargestNs);
    sum.kernels += figures.kernels;
    sum.workspace_bytes =
        std::max(sum.workspace_bytes, figures.workspace_bytes);
    if (figures.last_ns == 0) continue;
    sum.first_ns = sum.first_ns == 0 ? figures.first_ns
                                     : std::min(sum.first_ns, figures.first_ns);
    sum.last_ns = std::max(sum.last_ns, figures.last_ns);
  }
  return sum;
}

// Returns why the kernels cannot have run when they are said to have; empty if
// they can.
std::string WhyDisplaced(const std::vector<Sum>& sums, int64_t step_ns) {
  uint64_t last_begin_ns = 0;
  for (const Sum& sum : sums) {
    last_begin_ns = std::max(last_begin_ns, sum.begin_ns);
  }
  const uint64_t steps_ns =
      2 * std::min(static_cast<uint64_t>(std::max<int64_t>(step_ns, 0)),
                   kLargestNs);
  uint64_t ops = 0;
  uint64_t early = 0;
  uint64_t late = 0;
  for (const Sum& sum : sums) {
    if (sum.begin_ns == 0 || sum.last_ns == 0) continue;
    ++ops;
    if (sum.first_ns + kClockErrorNs < sum.begin_ns) {
      ++early;
    } else if (sum.last_ns > last_begin_ns + steps_ns + kLateNs) {
      ++late;
    }
  }
  if ((early + late) * kOneDisplacedIn <= ops) return "";
  return StrCat("host: kernels lie far from their ops: of ", ops,
                " ops with kernels, ", early,
                " have one that begins before the op, ", late,
                " one that ends long after the step");
}

// Returns the time within [first, last) during which a kernel ran.
uint64_t BusyNs(std::vector<KernelInterval> kernels, uint64_t first_ns,
                uint64_t last_ns) {
  std::sort(kernels.begin(), kernels.end(),
            [](const KernelInterval& a, const KernelInterval& b) {
              return a.start_ns < b.start_ns;
            });
  uint64_t busy = 0;
  uint64_t covered_to = first_ns;
  for (const KernelInterval& kernel : kernels) {
    const uint64_t from = std::max(kernel.start_ns, covered_to);
    const uint64_t to = std::min(kernel.end_ns, last_ns);
    if (to <= from) continue;
    busy += to - from;
    covered_to = to;
  }
  return busy;
}

}  // namespace

void ApplyMeasurement(const OpMeasurement& measured, v1::StepGraph& graph) {
  std::vector<Sum> sums;
  uint64_t kernels = 0;
  uint64_t first_ns = 0;
  uint64_t last_ns = 0;
  uint64_t begin_ns = 0;
  bool reported = false;
  bool missing = false;
  for (const v1::Op& op : graph.ops()) {
    const Sum& sum = sums.emplace_back(Total(measured, op));
    reported = reported || op.agent_ops_size() > 0;
    missing = missing || sum.missing;
    if (sum.begin_ns != 0) {
      begin_ns =
          begin_ns == 0 ? sum.begin_ns : std::min(begin_ns, sum.begin_ns);
    }
    kernels += sum.kernels;
    if (sum.last_ns == 0) continue;
    first_ns = first_ns == 0 ? sum.first_ns : std::min(first_ns, sum.first_ns);
    last_ns = std::max(last_ns, sum.last_ns);
  }
  if (!reported) return;
  const std::string displaced = WhyDisplaced(sums, graph.measured_step_ns());
  if (missing ||
      (measured.last_loss_ns != 0 && measured.last_loss_ns >= begin_ns)) {
    graph.set_timing(displaced.empty()
                         ? "host: records of the captured step are missing"
                         : displaced);
    return;
  }
  for (int i = 0; i < graph.ops_size(); ++i) {
    const int64_t workspace = sums[static_cast<size_t>(i)].workspace_bytes;
    if (workspace > graph.ops(i).workspace_bytes()) {
      graph.mutable_ops(i)->set_workspace_bytes(workspace);
    }
  }
  if (kernels == 0) {
    graph.set_timing("host: no kernel was traced");
    return;
  }
  if (!displaced.empty()) {
    graph.set_timing(displaced);
    return;
  }
  graph.set_timing("kernels");
  int64_t of_ops = 0;
  v1::Op* rest = nullptr;
  for (int i = 0; i < graph.ops_size(); ++i) {
    v1::Op& op = *graph.mutable_ops(i);
    const Sum& sum = sums[static_cast<size_t>(i)];
    if (op.name() == kRestOfStep) {
      rest = &op;
      continue;
    }
    if (op.agent_ops_size() > 0) {
      op.set_time_ns(static_cast<int64_t>(sum.kernel_ns));
    }
    of_ops = std::min(of_ops + std::max<int64_t>(op.time_ns(), 0),
                      static_cast<int64_t>(kLargestNs));
  }
  const uint64_t busy = BusyNs(measured.kernels, first_ns, last_ns);
  graph.set_launch_gap_ns(static_cast<int64_t>(last_ns - first_ns - busy));
  if (rest != nullptr) {
    const int64_t step_ns = graph.measured_step_ns() > 0
                                ? graph.measured_step_ns()
                                : static_cast<int64_t>(last_ns - first_ns);
    rest->set_time_ns(std::max<int64_t>(step_ns - of_ops, 0));
  }
}

}  // namespace reprise::server
