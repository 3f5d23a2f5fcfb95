// SPDX-License-Identifier: Apache-2.0
//
// The server's counters, exported as Prometheus text by prometheus-cpp. Names
// follow its naming guide; no label contains a run, an op or a storage.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/summary.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace reprise::server {

class Metrics {
  using Name = const std::string&;
  prometheus::Registry registry_;

  prometheus::Counter& NewCounter(Name name, Name help);
  prometheus::Gauge& NewGauge(Name name, Name help);

 public:
  // ---- Ingest ----
  prometheus::Counter& chunks_committed =
      NewCounter("reprise_chunks_committed_total", "Chunks stored.");
  prometheus::Counter& chunks_duplicate = NewCounter(
      "reprise_chunks_duplicate_total", "Chunks that were stored already.");
  prometheus::Counter& chunks_lost = NewCounter(
      "reprise_chunks_lost_total", "Chunks their sender no longer had.");
  prometheus::Counter& chunks_refused =
      NewCounter("reprise_chunks_refused_total",
                 "Chunks that were malformed or found the disk full.");
  prometheus::Counter& chunks_resent = NewCounter(
      "reprise_chunks_resent_total", "Times a chunk was asked again.");
  prometheus::Counter& records_committed =
      NewCounter("reprise_profile_events_total", "Records stored.");
  prometheus::Counter& refused_bytes =
      NewCounter("reprise_quota_refused_bytes_total",
                 "Bytes of runs beyond their quota, counted and not stored.");

  // ---- Planner ----
  prometheus::Gauge& plans_waiting =
      NewGauge("reprise_plan_queue_length", "Plans waiting for a worker.");
  prometheus::Counter& replans =
      NewCounter("reprise_replans_total", "Plans made again after measuring.");
  prometheus::Counter& curves_made = NewCounter(
      "reprise_curves_made_total",
      "Trade-off curves searched; those that were kept do not count.");
  prometheus::Counter& explanations_made =
      NewCounter("reprise_explanations_made_total",
                 "Explanations of plans made; those that were kept do not "
                 "count.");
  // Outcomes: optimal, feasible, infeasible, timeout, error.
  void CountPlan(std::string_view outcome, double seconds);

  // ---- RPCs; the first two are not exported ----
  std::atomic<uint64_t> calls_started{0};
  std::atomic<int64_t> calls_under_way{0};
  void CountRpc(std::string_view method, Code code, double seconds);

  // Sets what is read only when somebody asks for the metrics: a counter where
  // the name ends in "_total", else a gauge.
  void Read(Name name, Name help, double value);
  // Reads processor time, memory and file descriptors of this process, under
  // the names that Prometheus' own clients have for them, and its build.
  void ReadProcess();

  // Returns everything above as Prometheus text.
  std::string Text() const;

 private:
  prometheus::Family<prometheus::Counter>& plans_ =
      prometheus::BuildCounter()
          .Name("reprise_plans_total")
          .Help("Plans made, by outcome.")
          .Register(registry_);
  prometheus::Histogram& plan_seconds_ =
      prometheus::BuildHistogram()
          .Name("reprise_plan_duration_seconds")
          .Help("Time to make a plan.")
          .Register(registry_)
          .Add({}, prometheus::Histogram::BucketBoundaries{0.01, 0.03, 0.1, 0.3,
                                                           1, 3, 10});
  prometheus::Family<prometheus::Summary>& rpcs_ =
      prometheus::BuildSummary()
          .Name("reprise_rpc_duration_seconds")
          .Help("Time to answer a call.")
          .Register(registry_);
};

// Returns the name of a code as Connect writes it: "not_found".
std::string_view CodeName(Code code);

}  // namespace reprise::server
