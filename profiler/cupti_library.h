// Finding libcupti, and saying in a sentence why a call of it failed.
#pragma once

#include <stddef.h>

#include "profiler/cupti_abi.h"

namespace reprise::profiler {

// Two copies of CUPTI in one process do not get along, so the one that is
// already loaded is taken (PyTorch loads one); else `path`, which must be
// named; else the loader's own path, else the toolkit's folder. False, with
// the reason in `why`: there is none, or it is older than CUDA 11.8.
// `only_loaded`: look for one that is there already and load nothing.
bool LoadCupti(const char *path, bool only_loaded, cupti::Functions *functions,
               uint32_t *version, char *why, size_t why_bytes);

// "it answers 15: CUPTI is newer than the driver, ...".
const char *ExplainCupti(int result);

}  // namespace reprise::profiler
