// Finds and loads libcupti, and explains why one of its calls failed.
#pragma once

#include <stddef.h>

#include "profiler/cupti_abi.h"

namespace reprise::profiler {

// Loads CUPTI and resolves its functions. Two copies in one process do not
// work, so a copy that is already loaded is used (PyTorch loads one). Otherwise
// tries `path` if it is given, else the loader's search path, then the
// toolkit's folder. Returns false, with the reason in `why`, if there is none
// or it is older than CUDA 11.8. `only_loaded`: use a loaded copy, load
// nothing.
bool LoadCupti(const char *path, bool only_loaded, cupti::Functions *functions,
               uint32_t *version, char *why, size_t why_bytes);

// Explains a result code: "it answers 15: CUPTI is newer than the driver, ...".
const char *ExplainCupti(int result);

}  // namespace reprise::profiler
