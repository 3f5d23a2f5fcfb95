// SPDX-License-Identifier: Apache-2.0
//
// How a run's verdict is shown, and what `reprise show RUN` says beside it:
// what was alive at the peak of a measured step, how the last window stands,
// and what works in the job.
#pragma once

#include "base/status.h"
#include "clients/cli/console.h"
#include "clients/cli/server_client.h"

namespace reprise::cli {

// Good only where everything held and was checked.
Tone ToneOf(const v1::Verdict& verdict);

// The newest traced step without a plan; nothing where there is none.
Status PrintMeasuredPeak(const v1::Run& run, const ServerClient& client,
                         Console& console);

void PrintWindow(const v1::Run& run, Console& console);

void PrintCapabilities(const v1::Run& run, Console& console);

}  // namespace reprise::cli
