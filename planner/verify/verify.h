// SPDX-License-Identifier: Apache-2.0
//
// The second program: checks what a search says, without it. Nothing here knows
// how a plan or a certificate was found; integers only, and every sum that
// could overflow is checked, so that what is accepted is true.
//
// The parts: facts.h reads the graph, walk.h the schedule; window.h, program.h
// and chain.h each check one method of certificate.h.
#pragma once

#include <span>

#include "planner/verify/certificate.h"
#include "planner/verify/facts.h"
#include "planner/verify/walk.h"

namespace reprise::verify {

// OK: the claim of the certificate is true of every schedule in base order that
// this executor could run. INVALID_ARGUMENT says where it is not proven.
Status CheckCertificate(const Facts& facts, const Certificate& certificate);

}  // namespace reprise::verify
