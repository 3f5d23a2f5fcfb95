// SPDX-License-Identifier: Apache-2.0
//
// Ctrl-C as a question instead of an end: the first one asks the planner to
// stop and hand over its best plan; a second one ends the process.
#pragma once

namespace reprise::cli {

class CatchInterrupt {
 public:
  CatchInterrupt();
  ~CatchInterrupt();
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

  // Also set by SIGTERM.
  static bool Asked();
};

}  // namespace reprise::cli
