// SPDX-License-Identifier: Apache-2.0
//
// The server's counters, exported as Prometheus text. Names follow its naming
// guide; no label contains a run, an op or a storage.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace reprise::server {

class Metrics {
 public:
  // ---- Ingest ----
  std::atomic<uint64_t> chunks_committed{0};
  std::atomic<uint64_t> chunks_duplicate{0};
  std::atomic<uint64_t> chunks_lost{0};
  std::atomic<uint64_t> chunks_refused{0};
  std::atomic<uint64_t> resends_asked{0};
  std::atomic<uint64_t> records_committed{0};
  std::atomic<uint64_t> refused_bytes{0};

  // ---- Planner ----
  std::atomic<int64_t> plans_waiting{0};
  std::atomic<uint64_t> replans{0};
  std::atomic<uint64_t> curves_made{0};
  std::atomic<uint64_t> explanations_made{0};
  // Outcomes: optimal, feasible, infeasible, timeout, error.
  void CountPlan(std::string_view outcome, double seconds);

  // ---- RPCs ----
  std::atomic<uint64_t> calls_started{0};
  std::atomic<int64_t> calls_under_way{0};
  void CountRpc(std::string_view method, Code code, double seconds);

  // Returns everything above as Prometheus text.
  std::string Text() const;

 private:
  struct Timing {
    uint64_t count = 0;
    double seconds = 0;
  };
  static constexpr std::array<double, 7> kPlanBuckets = {0.01, 0.03, 0.1, 0.3,
                                                         1.0,  3.0,  10.0};

  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> plans_;
  std::array<uint64_t, kPlanBuckets.size()> plan_buckets_{};
  Timing plan_seconds_;
  std::map<std::pair<std::string, Code>, Timing> rpcs_;
};

// Formats one metric with its HELP and TYPE lines.
std::string MetricText(std::string_view name, std::string_view type,
                       std::string_view help, int64_t value);

// Returns processor time, memory and file descriptors of this process, under the
// names that Prometheus' own clients have for them.
std::string ProcessMetricsText();

// Returns the name of a code as Connect writes it: "not_found".
std::string_view CodeName(Code code);

}  // namespace reprise::server
