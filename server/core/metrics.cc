// SPDX-License-Identifier: Apache-2.0
#include "server/core/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

std::string Seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

// Near enough to when the process started.
const double kStarted = std::chrono::duration<double>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();

std::string Header(std::string_view name, std::string_view type,
                   std::string_view help) {
  return StrCat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

}  // namespace

std::string MetricText(std::string_view name, std::string_view type,
                       std::string_view help, int64_t value) {
  return StrCat(Header(name, type, help), name, " ", value, "\n");
}

std::string ProcessMetricsText() {
  rusage used{};
  (void)::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec;
  };
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  std::error_code none;
  const auto files =
      std::distance(std::filesystem::directory_iterator("/proc/self/fd", none),
                    std::filesystem::directory_iterator());
  rlimit limit{};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  constexpr std::string_view kCpu = "process_cpu_seconds_total";
  constexpr std::string_view kStart = "process_start_time_seconds";
  return StrCat(
      Header(kCpu, "counter", "Processor time of the daemon."), kCpu, " ",
      Seconds(seconds(used.ru_utime) + seconds(used.ru_stime)), "\n",
      Header(kStart, "gauge", "When the daemon started."), kStart, " ",
      static_cast<int64_t>(kStarted), "\n",
      MetricText("process_resident_memory_bytes", "gauge",
                 "Memory of the daemon.", pages * ::sysconf(_SC_PAGESIZE)),
      MetricText("process_open_fds", "gauge", "Open file descriptors.", files),
      MetricText("process_max_fds", "gauge", "How many may be open.",
                 static_cast<int64_t>(limit.rlim_cur)));
}

std::string_view CodeName(Code code) {
  constexpr std::array<std::string_view, 17> kNames = {"ok",
                                                       "canceled",
                                                       "unknown",
                                                       "invalid_argument",
                                                       "deadline_exceeded",
                                                       "not_found",
                                                       "already_exists",
                                                       "permission_denied",
                                                       "resource_exhausted",
                                                       "failed_precondition",
                                                       "aborted",
                                                       "out_of_range",
                                                       "unimplemented",
                                                       "internal",
                                                       "unavailable",
                                                       "data_loss",
                                                       "unauthenticated"};
  const auto number = static_cast<size_t>(code);
  return number < kNames.size() ? kNames[number] : "unknown";
}

void Metrics::CountPlan(std::string_view outcome, double seconds) {
  const std::lock_guard lock(mutex_);
  ++plans_[std::string(outcome)];
  ++plan_seconds_.count;
  plan_seconds_.seconds += seconds;
  for (size_t i = 0; i < kPlanBuckets.size(); ++i) {
    if (seconds <= kPlanBuckets[i]) ++plan_buckets_[i];
  }
}

void Metrics::CountRpc(std::string_view method, Code code, double seconds) {
  const std::lock_guard lock(mutex_);
  Timing& timing = rpcs_[{std::string(method), code}];
  ++timing.count;
  timing.seconds += seconds;
}

std::string Metrics::Text() const {
  const auto counter = [](std::string_view name, std::string_view help,
                          const std::atomic<uint64_t>& value) {
    return MetricText(name, "counter", help,
                      static_cast<int64_t>(value.load()));
  };
  std::string text =
      counter("reprise_chunks_committed_total", "Chunks stored.",
              chunks_committed) +
      counter("reprise_quota_refused_bytes_total",
              "Bytes of runs beyond their quota, counted and not stored.",
              refused_bytes) +
      counter("reprise_chunks_duplicate_total",
              "Chunks that were stored already.", chunks_duplicate) +
      counter("reprise_chunks_lost_total", "Chunks their sender no longer had.",
              chunks_lost) +
      counter("reprise_chunks_refused_total",
              "Chunks that were malformed or found the disk full.",
              chunks_refused) +
      counter("reprise_chunks_resent_total", "Times a chunk was asked again.",
              resends_asked) +
      counter("reprise_profile_events_total", "Records stored.",
              records_committed) +
      counter("reprise_replans_total", "Plans made again after measuring.",
              replans) +
      counter("reprise_curves_made_total",
              "Trade-off curves searched; those that were kept do not count.",
              curves_made) +
      counter("reprise_explanations_made_total",
              "Explanations of plans made; those that were kept do not count.",
              explanations_made) +
      MetricText("reprise_plan_queue_length", "gauge",
                 "Plans waiting for a worker.", plans_waiting.load());

  const std::lock_guard lock(mutex_);
  text += Header("reprise_plans_total", "counter", "Plans made, by outcome.");
  for (const auto& [outcome, count] : plans_) {
    text +=
        StrCat("reprise_plans_total{outcome=\"", outcome, "\"} ", count, "\n");
  }
  constexpr std::string_view kPlan = "reprise_plan_duration_seconds";
  text += Header(kPlan, "histogram", "Time to make a plan.");
  for (size_t i = 0; i < kPlanBuckets.size(); ++i) {
    text += StrCat(kPlan, "_bucket{le=\"", Seconds(kPlanBuckets[i]), "\"} ",
                   plan_buckets_[i], "\n");
  }
  text += StrCat(kPlan, "_bucket{le=\"+Inf\"} ", plan_seconds_.count, "\n",
                 kPlan, "_sum ", Seconds(plan_seconds_.seconds), "\n", kPlan,
                 "_count ", plan_seconds_.count, "\n");
  constexpr std::string_view kRpc = "reprise_rpc_duration_seconds";
  text += Header(kRpc, "summary", "Time to answer a call.");
  for (const auto& [key, timing] : rpcs_) {
    const std::string labels = StrCat("{method=\"", key.first, "\",code=\"",
                                      CodeName(key.second), "\"} ");
    text += StrCat(kRpc, "_sum", labels, Seconds(timing.seconds), "\n", kRpc,
                   "_count", labels, timing.count, "\n");
  }
  return text;
}

}  // namespace reprise::server
