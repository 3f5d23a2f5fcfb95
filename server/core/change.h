// SPDX-License-Identifier: Apache-2.0
//
// Who did what: one line of the log for everything that changes something.
//
//   {"event":"change","message":"alice (10.0.0.7:5123 over TLS): remove run r1,
//    named runs: ok","who":"alice","peer":"10.0.0.7:5123 over TLS",
//    "action":"remove","run_id":"r1","subject":"named runs","outcome":"ok",
//    "detail":"", ...}                                              (one line)
//
// Calls, and what jobs report, are logged once they are over. What the server
// does by itself has lines of its own, such as "run_removed" and "replaced".
#pragma once

#include <string>

#include "base/status.h"
#include "server/core/caller.h"

namespace reprise::server {

struct Change {
  // Of the server itself, if it has no name.
  Caller caller = {};
  // Asked of the server: "graph" (a step graph is sent), "plan", "replan",
  // "sweep", "finish-plan", "window", "apply-budget", "end", "import", "remove",
  // and "session" (a process begins to record). Of jobs: "apply" and "stop" a
  // plan, "withdraw" one that changed a value.
  std::string action;
  // As it was asked for where it was not found; empty where there is none.
  std::string run_id = {};
  // What it was about: the id of a plan or a graph, a file's name, a rule.
  std::string subject = {};
  // "ok", or the code in lower case, as "failed_precondition"; of "apply" also
  // "refused" and "unchecked".
  std::string outcome = "ok";
  // One sentence; the error's where it failed.
  std::string detail = {};

  // Takes the outcome of a call, and the error's sentence.
  void End(const Status& status);
};

// Long texts are cut.
void LogChange(const Change& change);

}  // namespace reprise::server
