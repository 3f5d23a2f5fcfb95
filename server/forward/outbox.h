// SPDX-License-Identifier: Apache-2.0
//
// What a central daemon has acknowledged, in a SQLite file of its own: the rest
// of the store is still to be sent. If the file is lost, everything is offered
// again, and the centre stores nothing twice.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "server/store/database.h"

namespace reprise::server {

// Used by one thread.
class Outbox {
 public:
  // Opens or creates the file. What it says of another centre than `target` is
  // forgotten.
  static StatusOr<Outbox> Open(const std::string& path,
                               const std::string& target);

  // Sessions whose end was acknowledged, with how many chunks before it.
  StatusOr<std::map<std::string, uint64_t>> Ended();
  Status SetEnded(const std::string& session_id, uint64_t chunks);
  Status RemoveEnded(const std::string& session_id);

  // Plans that were acknowledged for a run.
  StatusOr<bool> HasPlan(const std::string& run_id, const std::string& plan_id);
  Status AddPlan(const std::string& run_id, const std::string& plan_id);

  // What was acknowledged of each run beside its sessions (RunFacts::Text).
  StatusOr<std::map<std::string, std::string>> Runs();
  Status SetRun(const std::string& run_id, const std::string& facts);

  // Forgets a run that is no longer in the store.
  Status RemoveRun(const std::string& run_id);

 private:
  explicit Outbox(Database database) : database_(std::move(database)) {}

  Database database_;
};

}  // namespace reprise::server
