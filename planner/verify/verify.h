// SPDX-License-Identifier: Apache-2.0
//
// The second program: checks a search's claims independently of the search.
// Nothing here knows how a plan or a certificate was found. All arithmetic is
// in integers, and every sum that could overflow is checked, so what is
// accepted is true.
//
// facts.h reads the graph and walk.h the schedule; window.h, program.h and
// chain.h each check one method of certificate.h.
#pragma once

#include <span>

#include "planner/model/certificate.h"
#include "planner/verify/facts.h"
#include "planner/verify/walk.h"

namespace reprise::verify {

// Returns OK if the claim of the certificate is true for every schedule in base
// order that this executor could run. INVALID_ARGUMENT says where it is not
// proven.
Status CheckCertificate(const Facts& facts, const Certificate& certificate);

}  // namespace reprise::verify
