// The seam between the agent and a device's own tracer (CUPTI).
//
// The agent asks four things of a tracer, all under the control lock: what is
// there (once, at start), begin and end of a window, and a flush from
// reprise_step. A tracer pushes its records into the ring itself, in any
// thread, and never calls back into anything else.
//
// This build looks for the driver and the library and says what it found; it
// traces no kernels, so every window runs on the host clock and the allocator
// events that the adapter reports.
#pragma once

#include <stdint.h>

namespace reprise::profiler {

struct TracerFacts {
  uint32_t level;  // as reprise_caps.cupti
  uint32_t cupti_version, driver_version;
  uint64_t untimed, dropped, device_bytes;
  char holder[64];  // who else traces; empty: nobody known
  char why[192];    // why `level` is not 3
};

// Looks for libcuda.so.1 first, so that the reason is "no NVIDIA driver" and
// not an unknown error of a library that needs one. `cupti_path` may be null.
void ProbeTracer(const char *cupti_path, TracerFacts *facts);

// True when kernels are traced from here on; else `why` says why not.
bool BeginDeviceWindow(TracerFacts *facts);

}  // namespace reprise::profiler
