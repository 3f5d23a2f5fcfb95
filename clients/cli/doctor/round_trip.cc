// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/doctor/round_trip.h"

#include <chrono>
#include <sstream>

#include "base/str_cat.h"
#include "base/uuid.h"
#include "clients/cli/doctor/job.h"
#include "clients/cli/server/runtime_paths.h"
#include "clients/cli/server/server_client.h"
#include "profiler/include/reprise_agent.h"

namespace reprise::cli {
namespace {

using std::chrono::seconds;

// Start 1 s, flush 2 s, plan 4 s, plus time for a busy machine.
constexpr auto kJobPatience = seconds(10);
constexpr auto kFlushPatience = seconds(2);  // those of job.cc
constexpr auto kPlanPatience = seconds(4);

const std::string kRunPrefix = "doctor-";

std::string FindAgent(const std::string& named) {
  const std::string found = AgentLibrary();
  return found.empty() ? named : found;
}

}  // namespace

bool IsDoctorRun(const std::string& run_id) {
  return run_id.rfind(kRunPrefix, 0) == 0;
}

RoundTrip::RoundTrip(const std::string& agent) : agent_(FindAgent(agent)) {
  if (agent_.empty()) {
    trouble_ =
        "libreprise_agent.so was not found, so no records were sent through it";
    advice_ = "name it with REPRISE_AGENT, or install the package reprise";
    return;
  }
  socket_ = AgentSocket();
  if (!DaemonAnswers(socket_)) {
    auto scratch = ScratchDaemon::Start();
    if (!scratch.ok()) {
      trouble_ = StrCat("no daemon runs, and a private one does not start: ",
                        scratch.status().message());
      advice_ = "see `reprise serve`, which says more";
      return;
    }
    scratch_ = *std::move(scratch);
    socket_ = scratch_->socket();
  }
  said_ = Read(InChild(
      [&] { return RunDoctorJob(agent_, socket_, kRunPrefix + NewUuid()); },
      kJobPatience));
  load_ = LoadNow();
  if (!scratch_ && IsStopped(DaemonPid(socket_))) load_.last_minute = 0;
}

RoundTrip::Said RoundTrip::Read(const std::string& text) {
  Said said;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    int status = REPRISE_INERT;
    words >> word;
    if (word == "abi") {
      words >> said.abi;
    } else if (word == "start") {
      words >> status >> std::ws;
      std::getline(words, said.start_why);
      said.started = status == REPRISE_OK || status == REPRISE_DEGRADED;
    } else if (word == "push") {
      words >> said.pushed >> said.dropped >> status >> said.flush_ns;
      said.flushed = status == REPRISE_OK;
    } else if (word == "plan") {
      words >> status >> said.plan_ns >> std::ws;
      std::getline(words, said.plan_why);
      said.planned = status == REPRISE_OK;
    }
  }
  return said;
}

std::string RoundTrip::Where() const {
  return scratch_ ? "a private daemon" : StrCat("the daemon at ", socket_);
}

std::string RoundTrip::HungAdvice() const {
  const pid_t pid = scratch_ ? 0 : DaemonPid(socket_);
  if (pid == 0) return "restart the daemon";
  return StrCat("is process ", pid, " stopped (kill -CONT ", pid,
                ") or busy? else restart it");
}

// Compares the versions that agent, command and daemon report. "records" checks
// whether they actually understand each other.
Check RoundTrip::Versions(const Globals& globals) const {
  Check check{Health::kOk, "versions",
              StrCat("agent ABI ", said_.abi, " (", agent_, ")"), ""};
  const auto client = ServerClient::Connect(globals);
  const auto status = client.ok() ? client->GetStatus()
                                  : StatusOr<v1::ServerStatus>(client.status());
  if (status.ok()) check.found += ", daemon " + status->version();
  if (status.ok() && status->ring_layout() != 0) {
    check.found += StrCat(", ring layout ", status->ring_layout(),
                          ", protocol ", status->proto_version());
  }
  if (said_.abi != REPRISE_ABI ||
      (status.ok() && status->version() != REPRISE_VERSION)) {
    check.health = Health::kWarning;
    check.found +=
        StrCat(", this command " REPRISE_VERSION " with ABI ", REPRISE_ABI);
    check.advice = "use agent, daemon and command of one release";
  }
  return check;
}

Check RoundTrip::Records() const {
  if (!said_.started && said_.abi == 0 && said_.start_why.empty()) {
    return LateCheck("records", StrCat("the agent ", agent_), kJobPatience,
                     load_, HungAdvice());
  }
  if (!said_.started) {
    return {
        Health::kProblem, "records",
        StrCat("the agent ", agent_, " gets no session at ", Where(), ": ",
               said_.start_why.empty() ? "it said nothing" : said_.start_why),
        HungAdvice()};
  }
  if (!said_.flushed) {
    return LateCheck("records",
                     StrCat("asked to take ", said_.pushed,
                            " records out of the ring, ", Where()),
                     kFlushPatience, load_, HungAdvice());
  }
  if (said_.dropped > 0) {
    return {Health::kProblem, "records",
            StrCat(said_.dropped, " of ", said_.pushed + said_.dropped,
                   " records did not fit into the ring"),
            "the machine is overloaded, or the daemon too slow: see its log"};
  }
  return {Health::kOk, "records",
          StrCat(said_.pushed, " went through a ring to ", Where(),
                 ", taken in ", FormatDuration(said_.flush_ns)),
          ""};
}

Check RoundTrip::Plan() const {
  if (!said_.planned && said_.plan_why.empty()) {
    return LateCheck(
        "plan", StrCat("asked for the plan of a graph of 6 ops, ", Where()),
        kPlanPatience, load_, "see `reprise status` and the daemon's log");
  }
  if (!said_.planned) {
    return {Health::kProblem, "plan",
            StrCat("no plan came from ", Where(),
                   " for a graph of 6 ops: ", said_.plan_why),
            "see `reprise status` and the daemon's log"};
  }
  return {Health::kOk, "plan",
          StrCat("a graph of 6 ops went up and its plan came down in ",
                 FormatDuration(said_.plan_ns)),
          ""};
}

std::vector<Check> RoundTrip::Finish(const Globals& globals) const {
  if (!trouble_.empty()) {
    return {{Health::kWarning, "records", trouble_, advice_}};
  }
  Globals where = globals;
  if (scratch_) {
    where.server = scratch_->server();
    where.token_file = scratch_->token_file();
  }
  std::vector<Check> checks;
  if (said_.abi != 0) checks.push_back(Versions(where));
  checks.push_back(Records());
  if (said_.flushed) checks.push_back(Plan());
  return checks;
}

}  // namespace reprise::cli
