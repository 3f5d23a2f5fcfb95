// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/str_cat.h"
#include "planner/search/solve.h"

namespace reprise::planner {

Status CheckRequest(const Request& request) {
  if (request.budget_bytes < 0) {
    return InvalidArgument(StrCat("budget_bytes: must not be negative, got ",
                                  request.budget_bytes));
  }
  if (request.max_ticks < 0) {
    return InvalidArgument(
        StrCat("max_ticks: must not be negative, got ", request.max_ticks));
  }
  if (request.until_stopped && !request.should_stop) {
    return InvalidArgument("until_stopped: needs should_stop");
  }
  if (!(request.target_gap >= 0) || request.target_gap > 1e6) {
    return InvalidArgument("target_gap: must be between 0 and 1000000");
  }
  if (request.capabilities.max_runs < 0) {
    return InvalidArgument(
        StrCat("capabilities.max_runs: must not be negative, "
               "got ",
               request.capabilities.max_runs));
  }
  const int64_t ns_per_op = request.capabilities.ns_per_op;
  if (ns_per_op < 0 || ns_per_op > 1'000'000'000) {
    return InvalidArgument(
        StrCat("capabilities.ns_per_op: must be between 0 "
               "and 1000000000, got ",
               ns_per_op));
  }
  const Link& link = request.capabilities.link;
  if (link.out_bytes_per_s < 0 || link.in_bytes_per_s < 0 ||
      link.latency_ns < 0 || link.host_bytes < 0) {
    return InvalidArgument("link: its numbers must not be negative");
  }
  if (link.host_bytes > 0 &&
      (request.strategy != Strategy::kAuto ||
       request.capabilities.execution == Execution::kOnce)) {
    return InvalidArgument(
        "link: named plans, and executors that take a set of saved storages, "
        "use no host memory");
  }
  const std::vector<PassRule> rules = PassRules();
  for (const std::string& name : request.without) {
    const bool known =
        std::any_of(rules.begin(), rules.end(),
                    [&](const PassRule& rule) { return rule.name == name; });
    if (!known) {
      return InvalidArgument(StrCat("without: there is no pass ", name));
    }
  }
  return OkStatus();
}

Status CheckHasNoHost(const Request& request) {
  if (request.capabilities.link.host_bytes <= 0) return OkStatus();
  return InvalidArgument(
      "link: curves and bounds are of plans without host "
      "memory");
}

Known::Known(const Problem& problem) : generator(problem), chains(problem) {
  archive.Add(problem.base, BaseExecs(*problem.graph), "base");
}

int64_t TicksOf(const Problem& problem, const Request& request) {
  if (request.max_ticks > 0) return request.max_ticks;
  return std::max<int64_t>(200'000'000, 20'000 * int64_t{problem.op_count});
}

}  // namespace reprise::planner
