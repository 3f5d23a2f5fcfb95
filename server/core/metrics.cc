// SPDX-License-Identifier: Apache-2.0
#include "server/core/metrics.h"

#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "server/core/build_info.h"

namespace reprise::server {

namespace {

// Near enough to when the process started.
const std::chrono::system_clock::time_point kStarted =
    std::chrono::system_clock::now();

}  // namespace

prometheus::Counter& Metrics::NewCounter(Name name, Name help) {
  return prometheus::BuildCounter()
      .Name(name)
      .Help(help)
      .Register(registry_)
      .Add({});
}

prometheus::Gauge& Metrics::NewGauge(Name name, Name help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(
      {});
}

void Metrics::CountPlan(std::string_view outcome, double seconds) {
  plans_.Add({{"outcome", std::string(outcome)}}).Increment();
  plan_seconds_.Observe(seconds);
}

void Metrics::CountRpc(std::string_view method, Code code, double seconds) {
  rpcs_
      .Add({{"method", std::string(method)},
            {"code", std::string(CodeName(code))}},
           prometheus::Summary::Quantiles{})
      .Observe(seconds);
}

void Metrics::Read(Name name, Name help, double value) {
  if (name.ends_with("_total")) {
    prometheus::Counter& counter = NewCounter(name, help);
    counter.Increment(value - counter.Value());
  } else {
    NewGauge(name, help).Set(value);
  }
}

void Metrics::ReadProcess() {
  rusage used{};
  (void)::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           1e-6 * static_cast<double>(time.tv_usec);
  };
  Read("process_cpu_seconds_total", "Processor time of the daemon.",
       seconds(used.ru_utime) + seconds(used.ru_stime));
  Read("process_start_time_seconds", "When the daemon started.",
       std::chrono::duration<double>(kStarted.time_since_epoch()).count());
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  Read("process_resident_memory_bytes", "Memory of the daemon.",
       static_cast<double>(pages * ::sysconf(_SC_PAGESIZE)));
  std::error_code none;
  const auto files =
      std::distance(std::filesystem::directory_iterator("/proc/self/fd", none),
                    std::filesystem::directory_iterator());
  Read("process_open_fds", "Open file descriptors.",
       static_cast<double>(files));
  rlimit limit{};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  Read("process_max_fds", "How many may be open.",
       static_cast<double>(limit.rlim_cur));
  prometheus::BuildGauge()
      .Name("reprise_build_info")
      .Help("The running build.")
      .Register(registry_)
      .Add({{"version", kVersion}, {"revision", kRevision}})
      .Set(1);
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(registry_.Collect());
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

}  // namespace reprise::server
