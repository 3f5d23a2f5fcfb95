// SPDX-License-Identifier: Apache-2.0
//
// Does once what a job does: sends records through a ring into the daemon, and a
// step graph for a plan.
//
//   RoundTrip trip(agent library);   before gRPC: forks the job
//   trip.Finish(server)              what it found
//
// The job is a child process with the real agent. It uses the running daemon
// or, if there is none, a private one in a temporary folder. Its run is marked
// as ephemeral: the server removes it when it ends. Everything is limited to
// about twelve seconds, even if the daemon hangs.
#pragma once

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
  // Runs the job. `agent` is the path of libreprise_agent.so; empty: it is
  // searched next to this program.
  explicit RoundTrip(const std::string& agent);

  // Returns the checks "versions", "records" and "plan". `globals` names the
  // server, unless a daemon was started for the job.
  std::vector<Check> Finish(const Globals& globals) const;

 private:
  // What the job reports about itself, one line per part.
  struct Said {
    bool started = false, flushed = false, planned = false;
    uint32_t abi = 0;
    uint64_t pushed = 0, dropped = 0;
    int64_t flush_ns = 0, plan_ns = 0;
    std::string start_why, plan_why;
  };

  static Said Read(const std::string& text);
  Check Versions(const Globals& globals) const;
  Check Records() const;
  Check Plan() const;
  std::string Where() const;
  std::string HungAdvice() const;

  std::string agent_;
  std::string trouble_;  // why no job could be started
  std::string advice_;
  std::string socket_;
  std::optional<ScratchDaemon> scratch_;
  Said said_;
  Load load_;
};

}  // namespace reprise::cli
