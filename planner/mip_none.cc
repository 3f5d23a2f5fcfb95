// SPDX-License-Identifier: Apache-2.0
//
// No MIP solver in this build.
#include "planner/mip.h"

namespace reprise::planner {

bool MipAvailable() { return false; }

MipAnswer SolveLp(const MipProgram&, const std::function<bool()>&) {
  return {};
}

MipAnswer SolveMip(const MipProgram&, const MipOptions&) { return {}; }

}  // namespace reprise::planner
