// SPDX-License-Identifier: Apache-2.0
//
// Does once what a job does: sends records through a ring into the daemon's
// store, and a step graph for a plan.
//
//   RoundTrip trip(agent library);   before gRPC: forks the job
//   trip.Finish(server)              asks the server what arrived
//
// The job is a child process with the real agent. It uses the running daemon
// or, if there is none, a private one in a temporary folder. Its run is marked
// as ephemeral: the server removes it when it ends. Everything is limited to
// about twelve seconds, even if the daemon hangs.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "clients/cli/doctor/doctor.h"
#include "clients/cli/server/private_daemon.h"

namespace reprise::cli {

// Returns whether this is the run of such a job and not one of the user's.
bool IsDoctorRun(const std::string& run_id);

class RoundTrip {
 public:
  // `agent` is the path of libreprise_agent.so; empty: it is searched next to
  // this program.
  explicit RoundTrip(std::string agent);
  ~RoundTrip();
  RoundTrip(const RoundTrip&) = delete;
  RoundTrip& operator=(const RoundTrip&) = delete;

  // Returns the checks "versions", "records" and "plan". `globals` names the
  // server, unless a daemon was started for the job.
  std::vector<Check> Finish(const Globals& globals);

 private:
  // What the job reports about itself, one line per part.
  struct Said {
    bool started = false, flushed = false, planned = false;
    uint32_t abi = 0;
    uint64_t pushed = 0, dropped = 0;
    int64_t flush_ns = 0, plan_ns = 0;
    std::string start_why, plan_why;
  };

  void StartJob();
  Said Listen();
  void EndJob();
  Check Versions(const Said& said, const Globals& globals) const;
  Check Records(const Said& said, const Globals& globals);
  Check Plan(const Said& said) const;
  std::string Where() const;
  std::string HungAdvice() const;
  // Stored waits until the store has `records` records of the run, Removed
  // until it has nothing of it.
  bool Stored(const Globals& globals, uint64_t records, std::string& why);
  bool Removed(const Globals& globals);

  std::string agent_;
  std::string trouble_;  // why no job could be started
  std::string advice_;
  std::string run_id_;
  std::string socket_;
  std::optional<ScratchDaemon> scratch_;
  Load load_;
  pid_t job_ = 0;
  int from_job_ = -1;
  int to_job_ = -1;
};

}  // namespace reprise::cli
