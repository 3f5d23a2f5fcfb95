// SPDX-License-Identifier: Apache-2.0
//
// Certificates of several windows: a tree of linear programs over the
// verifier's own program, until every leaf proves what was claimed. The bound
// to reach is known, so the tree is walked depth first and each leaf ends as
// soon as its multipliers, evaluated exactly, say enough.
#pragma once

#include <cstdint>

#include "planner/certify.h"

namespace reprise::planner {

// At most `added_ns`; what the root proves where the tree did not end.
verify::Certificate CertifyProgram(const verify::Facts& facts,
                                   int64_t budget_bytes,
                                   const ProofSource& source, int64_t added_ns,
                                   const CertifyLimits& limits);

// That nothing fits in less than `least_bytes`; method kNone where the tree did
// not end.
verify::Certificate CertifyImpossible(const verify::Facts& facts,
                                      int64_t least_bytes,
                                      const ProofSource& source,
                                      const CertifyLimits& limits);

}  // namespace reprise::planner
