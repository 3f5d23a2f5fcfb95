// SPDX-License-Identifier: Apache-2.0
//
// Checks the daemon: its server, its store and its agents.
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "base/str_cat.h"
#include "clients/cli/doctor/doctor.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {
namespace {

constexpr int64_t kMuchLog = int64_t{256} << 20;
constexpr int64_t kMuchOffset = 1'000'000'000;

// Reports what a session says about CUPTI, if it is noteworthy.
Check AgentCheck(const v1::AgentStatus& agent) {
  Check check{Health::kOk, "agent",
              StrCat("pid ", agent.pid(), ", run ", agent.run_id()), ""};
  for (const std::string& line : agent.capabilities()) {
    const size_t equals = std::min(line.find('='), line.size() - 1);
    const std::string name = line.substr(0, equals);
    const std::string value = line.substr(equals + 1);
    if (name == "cupti_holder" && !value.empty()) {
      check.health = Health::kWarning;
      check.found += ": CUPTI is held by " + value;
      check.advice = "stop that tool; the next window tries again";
    }
    if (name == "cupti_device_bytes" && value != "0") {
      check.found += StrCat(
          ", CUPTI has ", FormatBytes(std::strtoll(value.c_str(), nullptr, 10)),
          " of the device");
    }
  }
  return check;
}

void AddStatus(const v1::ServerStatus& status, const Endpoint& endpoint,
               std::vector<Check>& checks) {
  Check server{Health::kOk, "server",
               StrCat("reprised ", status.version(), " at ", endpoint.url,
                      ", ring layout ", status.ring_layout(), ", protocol ",
                      status.proto_version()),
               ""};
  if (status.version() != REPRISE_VERSION) {
    server.health = Health::kWarning;
    server.found += ", this command is " REPRISE_VERSION;
    server.advice = "use both of one release";
  }
  checks.push_back(std::move(server));
  if (!status.degraded().empty()) {
    checks.push_back({Health::kProblem, "store", status.degraded(),
                      "make room, or start with another --data-dir"});
  } else {
    struct statvfs disk {};
    Check store{
        Health::kOk, "store",
        StrCat(FormatBytes(status.store_bytes()), " in ", status.data_dir(),
               ", spool ", FormatBytes(status.spool_bytes()), ", logs of both ",
               FormatBytes(status.wal_bytes())),
        ""};
    if (statvfs(status.data_dir().c_str(), &disk) == 0) {
      const auto free_bytes =
          static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
      store.found += StrCat(", ", FormatBytes(free_bytes), " free");
      if (free_bytes < int64_t{1} << 30) {
        store.health = Health::kWarning;
        store.advice = "make room: below 1 GiB records may be lost";
      } else if (status.wal_bytes() > kMuchLog) {
        store.health = Health::kWarning;
        store.advice =
            "a reader keeps the logs from being folded in: close what has the "
            "database open, or restart the daemon";
      }
    }
    checks.push_back(std::move(store));
  }
  for (const v1::AgentStatus& agent : status.agents()) {
    if (agent.connected()) checks.push_back(AgentCheck(agent));
  }
}

// Reports the losses of the newest run: records that found the ring full, and
// chunks trimmed from a spool.
Check Losses(const ServerClient& client) {
  const auto runs = client.ListRuns(1);
  if (!runs.ok() || runs->runs().empty()) {
    return {Health::kOk, "losses", "no run was recorded yet", ""};
  }
  const v1::Run& run = runs->runs(0);
  Check check{Health::kOk, "losses",
              StrCat("none of ", run.records(), " records of the last run, ",
                     run.run_id()),
              ""};
  if (run.dropped() > 0 || run.lost_chunks() > 0) {
    check.health = Health::kWarning;
    check.found =
        StrCat("the last run, ", run.run_id(), ", lost ", run.dropped(),
               " records that did not fit into its "
               "ring, and ",
               run.lost_chunks(), " chunks");
    check.advice =
        "its steps that miss some are marked as incomplete; was the daemon "
        "stopped, the machine overloaded, or the disk full?";
  }
  return check;
}

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// Compares the server's clock with ours. The uncertainty is half of the call's
// duration.
Check ClockOffset(const v1::ServerStatus& status, int64_t asked_ns,
                  int64_t answered_ns) {
  if (status.now_ns() == 0) {
    return {Health::kOk, "clock", "the server does not say its time", ""};
  }
  const int64_t offset = status.now_ns() - (asked_ns + answered_ns) / 2;
  const int64_t distance = offset < 0 ? -offset : offset;
  if (distance < kMuchOffset) {
    return {Health::kOk, "clock",
            StrCat("the server's differs by less than ",
                   FormatDuration(
                       std::max(distance, (answered_ns - asked_ns) / 2))),
            ""};
  }
  return {Health::kWarning, "clock",
          StrCat("the server's is ", FormatDuration(distance),
                 offset > 0 ? " ahead" : " behind"),
          "set both by NTP: dates of runs are those of the job's clock"};
}

// Checks the server and returns its status; empty if none answers.
v1::ServerStatus CheckServer(const Globals& globals, bool listening,
                             std::vector<Check>& checks) {
  // Even if nothing connects: an expired certificate may be the cause.
  const auto endpoint = FindServer(globals);
  if (endpoint.ok() && endpoint->tls) {
    checks.push_back(CheckCertificate(*endpoint));
  }
  const auto client = ServerClient::Connect(globals);
  if (!client.ok()) {
    const bool broken = listening || NamesServer(globals);
    checks.push_back(
        {broken ? Health::kProblem : Health::kOk, "server",
         broken ? client.status().message()
                : std::string("none runs here; files can be "
                              "planned without one"),
         broken ? "is it still starting? see `reprise status`" : ""});
    return {};
  }
  const int64_t asked_ns = NowNs();
  const auto status = client->GetStatus();
  const int64_t answered_ns = NowNs();
  if (!status.ok()) {
    checks.push_back(
        {Health::kProblem, "server", status.status().message(), "restart it"});
  } else {
    AddStatus(*status, client->endpoint(), checks);
    checks.push_back(ClockOffset(*status, asked_ns, answered_ns));
    checks.push_back(Losses(*client));
  }
  return status.ok() ? *status : v1::ServerStatus();
}

}  // namespace

std::vector<Check> CheckDaemon(const Globals& globals) {
  std::vector<Check> checks;
  bool listening = false;
  checks.push_back(CheckSocket(listening));
  const v1::ServerStatus status = CheckServer(globals, listening, checks);
  const auto jobs = std::count_if(
      status.agents().begin(), status.agents().end(),
      [](const v1::AgentStatus& agent) { return agent.connected(); });
  checks.push_back({Health::kOk, "sessions",
                    StrCat(jobs, jobs == 1 ? " job" : " jobs", " connected"),
                    ""});
  return checks;
}

}  // namespace reprise::cli
