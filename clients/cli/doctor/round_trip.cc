// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/doctor/round_trip.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include "base/str_cat.h"
#include "base/uuid.h"
#include "clients/cli/doctor/job.h"
#include "clients/cli/server/runtime_paths.h"
#include "clients/cli/server/server_client.h"
#include "profiler/include/reprise_agent.h"

namespace reprise::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Start 1 s, flush 2 s, plan 4 s, plus time for a busy machine.
constexpr auto kJobPatience = seconds(10);
constexpr auto kFlushPatience = seconds(2);  // those of job.cc
constexpr auto kPlanPatience = seconds(4);
constexpr auto kStorePatience = seconds(3);
constexpr auto kEndPatience = seconds(5);
constexpr size_t kMostSaid = 8 << 10;

const std::string kRunPrefix = "doctor-";

std::string FindAgent(const std::string& named) {
  const std::string found = AgentLibrary();
  return found.empty() ? named : found;
}

void CloseEnd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

}  // namespace

bool IsDoctorRun(const std::string& run_id) {
  return run_id.rfind(kRunPrefix, 0) == 0;
}

RoundTrip::RoundTrip(std::string agent)
    : agent_(FindAgent(agent)), run_id_(kRunPrefix + NewUuid()) {
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
  StartJob();
}

RoundTrip::~RoundTrip() { EndJob(); }

void RoundTrip::StartJob() {
  int said[2];
  int wait[2];
  if (pipe2(said, O_CLOEXEC) != 0) {
    trouble_ = "a pipe cannot be made";
    return;
  }
  if (pipe2(wait, O_CLOEXEC) != 0) {
    close(said[0]);
    close(said[1]);
    trouble_ = "a pipe cannot be made";
    return;
  }
  job_ = fork();
  if (job_ == 0) {
    close(said[0]);
    close(wait[1]);
    RunDoctorJob(agent_, socket_, run_id_, said[1], wait[0]);
  }
  close(said[1]);
  close(wait[0]);
  from_job_ = said[0];
  to_job_ = wait[1];
  if (job_ < 0) trouble_ = "a process cannot be started";
}

RoundTrip::Said RoundTrip::Listen() {
  const auto until = Clock::now() + kJobPatience;
  std::string text;
  while (text.size() < kMostSaid) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(until - Clock::now());
    pollfd wait{.fd = from_job_, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 ||
        poll(&wait, 1, static_cast<int>(left.count())) <= 0) {
      break;
    }
    char some[1024];
    const ssize_t got = read(from_job_, some, sizeof some);
    if (got <= 0) break;
    text.append(some, static_cast<size_t>(got));
  }
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

// Lets the job end its session. If it does not, it is killed, which ends the
// session.
void RoundTrip::EndJob() {
  CloseEnd(to_job_);
  CloseEnd(from_job_);
  if (job_ <= 0) return;
  const auto until = Clock::now() + kEndPatience;
  while (waitpid(job_, nullptr, WNOHANG) == 0) {
    if (Clock::now() > until) {
      kill(job_, SIGKILL);
      waitpid(job_, nullptr, 0);
      break;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  job_ = 0;
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

bool RoundTrip::Stored(const Globals& globals, uint64_t records,
                       std::string& why) {
  const auto client = ServerClient::Connect(globals);
  if (!client.ok()) {
    why = client.status().message();
    return false;
  }
  const auto until = Clock::now() + kStorePatience;
  uint64_t found = 0;
  do {
    const auto run = client->GetRun(run_id_);
    if (run.ok()) found = run->records();
    if (found >= records) return true;
    std::this_thread::sleep_for(milliseconds(20));
  } while (Clock::now() < until);
  why = StrCat(found, " are in the store");
  return false;
}

bool RoundTrip::Removed(const Globals& globals) {
  const auto client = ServerClient::Connect(globals);
  if (!client.ok()) return false;
  const auto until = Clock::now() + kStorePatience;
  do {
    if (client->GetRun(run_id_).status().code() == Code::kNotFound) return true;
    std::this_thread::sleep_for(milliseconds(20));
  } while (Clock::now() < until);
  return false;
}

// Compares the versions that agent, command and daemon report. "records" checks
// whether they actually understand each other.
Check RoundTrip::Versions(const Said& said, const Globals& globals) const {
  Check check{Health::kOk, "versions",
              StrCat("agent ABI ", said.abi, " (", agent_, ")"), ""};
  const auto client = ServerClient::Connect(globals);
  const auto status = client.ok() ? client->GetStatus()
                                  : StatusOr<v1::ServerStatus>(client.status());
  if (status.ok()) check.found += ", daemon " + status->version();
  if (status.ok() && status->ring_layout() != 0) {
    check.found += StrCat(", ring layout ", status->ring_layout(),
                          ", protocol ", status->proto_version());
  }
  if (said.abi != REPRISE_ABI ||
      (status.ok() && status->version() != REPRISE_VERSION)) {
    check.health = Health::kWarning;
    check.found +=
        StrCat(", this command " REPRISE_VERSION " with ABI ", REPRISE_ABI);
    check.advice = "use agent, daemon and command of one release";
  }
  return check;
}

Check RoundTrip::Records(const Said& said, const Globals& globals) {
  if (!said.started && said.abi == 0 && said.start_why.empty()) {
    return LateCheck("records", StrCat("the agent ", agent_), kJobPatience,
                     load_, HungAdvice());
  }
  if (!said.started) {
    return {Health::kProblem, "records",
            StrCat("the agent ", agent_, " gets no session at ", Where(), ": ",
                   said.start_why.empty() ? "it said nothing" : said.start_why),
            HungAdvice()};
  }
  if (!said.flushed) {
    return LateCheck("records",
                     StrCat("asked to take ", said.pushed,
                            " records out of the ring, ", Where()),
                     kFlushPatience, load_, HungAdvice());
  }
  if (said.dropped > 0) {
    return {Health::kProblem, "records",
            StrCat(said.dropped, " of ", said.pushed + said.dropped,
                   " records did not fit into the ring"),
            "the machine is overloaded, or the daemon too slow: see its log"};
  }
  std::string why;
  if (!Stored(globals, said.pushed, why)) {
    return LateCheck(
        "records",
        StrCat("asked for the ", said.pushed, " records that it took, ",
               Where(), " (", why, ")"),
        kStorePatience, load_,
        "see `reprise status`: is the store full, or the server away?");
  }
  return {Health::kOk, "records",
          StrCat(said.pushed, " went through a ring into the store of ",
                 Where(), ", taken in ", FormatDuration(said.flush_ns)),
          ""};
}

Check RoundTrip::Plan(const Said& said) const {
  if (!said.planned && said.plan_why.empty()) {
    return LateCheck(
        "plan", StrCat("asked for the plan of a graph of 6 ops, ", Where()),
        kPlanPatience, load_, "see `reprise status` and the daemon's log");
  }
  if (!said.planned) {
    return {Health::kProblem, "plan",
            StrCat("no plan came from ", Where(),
                   " for a graph of 6 ops: ", said.plan_why),
            "see `reprise status` and the daemon's log"};
  }
  return {Health::kOk, "plan",
          StrCat("a graph of 6 ops went up and its plan came down in ",
                 FormatDuration(said.plan_ns)),
          ""};
}

std::vector<Check> RoundTrip::Finish(const Globals& globals) {
  if (!trouble_.empty()) {
    return {{Health::kWarning, "records", trouble_, advice_}};
  }
  const Said said = Listen();
  load_ = LoadNow();
  if (!scratch_ && IsStopped(DaemonPid(socket_))) load_.last_minute = 0;
  Globals where = globals;
  if (scratch_) {
    where.server = scratch_->server();
    where.token_file = scratch_->token_file();
  }
  std::vector<Check> checks;
  if (said.abi != 0) checks.push_back(Versions(said, where));
  checks.push_back(Records(said, where));
  if (said.flushed) checks.push_back(Plan(said));
  EndJob();
  if (!scratch_ && said.flushed && !Removed(where)) {
    checks.push_back({Health::kWarning, "records",
                      StrCat("run ", run_id_,
                             " of this check is still in the "
                             "store"),
                      "a daemon of this release removes it by itself"});
  }
  return checks;
}

}  // namespace reprise::cli
