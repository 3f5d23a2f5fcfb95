// SPDX-License-Identifier: Apache-2.0
//
// Measures how many records per second the collector takes from rings into its
// spool, and on to a server's acknowledgement.
//
//   collect_bench [RECORDS] [AGENTS] [KIND]     default 10,000,000, 1, window
//
// KIND is what the agents push: `window`, a traced step on a GPU (for each op:
// its begin, an allocation, the launch, its link, the kernel, a free, its end),
// or `alloc`, allocator events only. The agents are threads that push as fast
// as the ring accepts records. The server is the strict in-memory peer of the
// tests. All of them run in this process and share the processor.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/collect/collector.h"
#include "server/collect/malloc_policy.h"
#include "tests/collect/ingest_peer.h"
#include "tests/collect/raw_agent.h"
#include "tests/collect/temporary_folder.h"

namespace {

using reprise::server::Collector;
using reprise::server::CollectorOptions;
using reprise::server::Eventually;
using reprise::server::IngestPeer;
using reprise::server::RawAgent;
using reprise::server::TemporaryFolder;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Returns the processor time of the threads with this name, from the kernel's
// scheduler.
double ThreadSeconds(const std::string& name) {
  double seconds = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    uint64_t ran_ns = 0;
    std::ifstream(task.path() / "schedstat") >> ran_ns;
    if (comm == name) seconds += static_cast<double>(ran_ns) / 1e9;
  }
  return seconds;
}

double ResidentMebibytes() {
  uint64_t pages = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident >> shared;
  // The rings are shared memory and belong to the agents.
  return static_cast<double>((resident - shared) * 4096) / (1 << 20);
}

// The records of op number `op`.
constexpr uint64_t kPerOp = 7;
void PushOp(RawAgent& agent, uint64_t op) {
  const uint64_t start = 1'000'000'000 + op * 20'000;
  const auto correlation = static_cast<uint32_t>(op);
  reprise_slot record = reprise::server::AllocRecord(0);
  const auto push = [&](uint16_t kind, uint64_t ts_ns) {
    record.kind = kind;
    record.ts_ns = ts_ns;
    agent.PushPatiently(record);
    record.body = {};
  };
  auto& body = record.body;
  body = {};
  body.op.op = op;
  body.op.name = 1 + static_cast<uint32_t>(op % 200);
  push(REPRISE_RECORD_OP_BEGIN, start);
  body.alloc.address = 0x7f0000000000 + (op % 4096) * 4096;
  body.alloc.bytes = 1 << 20;
  body.alloc.op = op;
  push(REPRISE_RECORD_ALLOC, start + 2000);
  body.api.dur = 3000;
  body.api.correlation = correlation;
  body.api.cbid = 211;
  push(REPRISE_RECORD_API, start + 4000);
  body.api.external_id = op;
  body.api.correlation = correlation;
  push(REPRISE_RECORD_LINK, 0);
  body.kernel.dur = 9000;
  body.kernel.correlation = correlation;
  body.kernel.name = 300 + static_cast<uint32_t>(op % 100);
  body.kernel.stream = 7;
  push(REPRISE_RECORD_KERNEL, start + 9000);
  body.alloc.address = 0x7f0000000000 + (op % 4096) * 4096;
  body.alloc.bytes = -(1 << 20);
  body.alloc.op = op;
  body.alloc.what = REPRISE_FREE;
  push(REPRISE_RECORD_ALLOC, start + 10'000);
  body.op.op = op;
  push(REPRISE_RECORD_OP_END, start + 12'000);
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t records =
      argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000'000;
  const uint64_t agent_count =
      argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const std::string kind = argc > 3 ? argv[3] : "window";
  if (records == 0 || agent_count == 0 ||
      (kind != "window" && kind != "alloc")) {
    std::fprintf(stderr,
                 "usage: collect_bench [RECORDS] [AGENTS] [window|alloc]\n");
    return 2;
  }
  reprise::server::KeepFreedBuffers();  // as the daemon does
  TemporaryFolder folder;
  IngestPeer peer;
  peer.forgetful = true;
  CollectorOptions options;
  options.agent_socket = folder / "agent.sock";
  options.spool_path = folder / "spool.db";
  options.channel = peer.Channel();
  auto collector = Collector::Start(std::move(options));
  if (!collector.ok()) {
    std::fprintf(stderr, "%s\n", collector.status().message().c_str());
    return 1;
  }
  std::vector<std::unique_ptr<RawAgent>> agents;
  for (uint64_t i = 0; i < agent_count; ++i) {
    agents.push_back(std::make_unique<RawAgent>(REPRISE_RING_DEFAULT_SLOTS));
    if (!agents.back()->Connect(folder / "agent.sock")) return 1;
  }

  const uint64_t each = records / agent_count / kPerOp * kPerOp;
  const auto start = Clock::now();
  std::vector<std::thread> writers;
  for (auto& agent : agents) {
    writers.emplace_back([&agent, each, &kind] {
      if (kind == "alloc") return agent->PushAllocs(0, each);
      for (uint64_t op = 1; op <= each / kPerOp; ++op) PushOp(*agent, op);
    });
  }
  int64_t most_spooled = 0;
  double most_resident = 0;
  const auto spooled = [&] {
    most_resident = std::max(most_resident, ResidentMebibytes());
    most_spooled = std::max(most_spooled, (*collector)->spool_bytes());
    return (*collector)->stats().records == each * agent_count;
  };
  if (!Eventually(spooled, 600)) return 1;
  const double spool_seconds = SecondsSince(start);
  const auto acknowledged = [&] {
    const auto stats = (*collector)->stats();
    return stats.chunks_acked == stats.chunks_spooled;
  };
  if (!Eventually(acknowledged, 600)) return 1;
  const double total_seconds = SecondsSince(start);
  for (std::thread& writer : writers) writer.join();

  const auto total = static_cast<double>(each * agent_count);
  const auto stats = (*collector)->stats();
  std::printf("records                 %.0f from %llu agents, %llu chunks\n",
              total, static_cast<unsigned long long>(agent_count),
              static_cast<unsigned long long>(stats.chunks_spooled));
  std::printf("ring to spool           %.2f M records/s\n",
              total / spool_seconds / 1e6);
  std::printf("ring to acknowledgement %.2f M records/s\n",
              total / total_seconds / 1e6);
  std::printf(
      "processor               %.2f s of %.2f s, agents and server "
      "included\n",
      CpuSeconds(), total_seconds);
  // The rate the collector could reach with one core for each of its threads,
  // independent of the machine's load.
  double collector_seconds = 0;
  for (const char* thread : {"reprise-drain", "reprise-forward"}) {
    const double seconds = ThreadSeconds(thread);
    collector_seconds += seconds;
    std::printf("%-23s %.2f s: %.2f M records/s of processor time\n", thread,
                seconds, total / seconds / 1e6);
  }
  std::printf("collector               %.3f s of processor per M records\n",
              collector_seconds / total * 1e6);
  std::printf("resident, rings aside   %.1f MiB, server included\n",
              most_resident);
  std::printf("largest spool           %.1f MiB\n",
              static_cast<double>(most_spooled) / (1 << 20));
  std::printf("resent, lost            %llu, %llu\n",
              static_cast<unsigned long long>(stats.chunks_resent),
              static_cast<unsigned long long>(stats.chunks_lost));
  return 0;
}
