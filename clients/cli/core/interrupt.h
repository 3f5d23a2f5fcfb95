// SPDX-License-Identifier: Apache-2.0
//
// Makes Ctrl-C a request rather than the end: the first one asks the planner to
// stop and return its best plan; a second one ends the process.
#pragma once

namespace reprise::cli {

class CatchInterrupt {
 public:
  CatchInterrupt();
  ~CatchInterrupt();
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

  // Returns whether SIGINT or SIGTERM was received.
  static bool Asked();
};

}  // namespace reprise::cli
