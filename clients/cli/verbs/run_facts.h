// SPDX-License-Identifier: Apache-2.0
//
// How a run's verdict is shown, and what `reprise show RUN` prints with it:
// what was alive at the peak of a measured step, the state of the last window,
// and what works in the job.
#pragma once

#include "base/status.h"
#include "clients/cli/core/console.h"
#include "clients/cli/server/server_client.h"
#include "reprise/v1/query.pb.h"

namespace reprise::cli {

// Returns kGood only if every promise was kept and checked.
Tone ToneOf(const v1::Verdict& verdict);

// Prints the peak of the newest traced step without a plan; nothing if there is
// none.
Status PrintMeasuredPeak(const v1::Run& run, const ServerClient& client,
                         Console& console);

void PrintWindow(const v1::Run& run, Console& console);

void PrintCapabilities(const v1::Run& run, Console& console);

// Prints what a run was doing, and what it held in memory, when it was killed
// or ran out of memory.

// Prints the newest moment in full, and the sentences of earlier ones.
void PrintMoments(const v1::GetMomentsResponse& moments, Console& console);

}  // namespace reprise::cli
