// The interface between the agent and a device's own tracer (CUPTI).
//
// CUPTI is not touched before the first window. A window subscribes (by
// convention the subscription is the lock among CUPTI's clients), enables what
// it needs, and restores everything but the clock when it ends:
//
//   idle ──Begin──▶ tracing ──End──▶ closing ──all buffers back──▶ idle
//     │ 39: held by another tool       └─ 2 s: flushed by force ─▶ idle
//     └──▶ waiting (tries again every second while the window is open)
//   anything else that fails ──▶ broken: inert for good, as every failing call
//                                would look for a driver again
//
// While the tracer is closing, kernels that were running when the window ended
// still deliver their times. Only then is the subscription released, so that no
// buffer of ours is handed to another client's callback. Thread ids and
// attributes are restored as well. The clock is not: its callback cannot be
// removed, and must not change its meaning (cupti_callbacks.h). From the first
// window on a client that registers no clock of its own gets CLOCK_MONOTONIC in
// place of CUPTI's default, CLOCK_REALTIME. Torch's profiler registers one in
// each session, unless it was told otherwise.
//
// All calls but PushDeviceOp and PopDeviceOps require the control lock, which
// no CUPTI callback takes. BeginDeviceWindow and EndDeviceWindow may take
// milliseconds.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/cupti_abi.h"
#include "profiler/cupti_callbacks.h"
#include "profiler/cupti_decode.h"
#include "profiler/include/reprise_agent.h"

namespace reprise::profiler {

struct Agent;
struct Ring;

struct TracerFacts {
  uint32_t level;  // as reprise_caps.cupti
  uint32_t cupti_version, driver_version;
  uint64_t device_bytes;        // upper bound; 0 outside a window
  char holder[64];              // which tool traces; empty: none known
  char why[REPRISE_WHY_BYTES];  // why `level` is not 3
};

// The value of a CUPTI attribute before the window.
struct SavedAttribute {
  bool changed;
  uint64_t value;
};
constexpr int kTracedAttributes = 4;

struct DeviceTracer {
  TracerFacts facts;
  cupti::Functions calls;
  bool loaded, broken;
  bool driver_missing;
  char path[256];                     // of libcupti, if it was given
  char recording[256];                // REPRISE_RECORD_CUPTI
  uint32_t recorded;                  // atomic: files written
  bool all_api, no_api, graph_trace;  // REPRISE_CUPTI_OPTIONS

  uint32_t wanted;   // kinds of the open window, 0: none
  uint32_t enabled;  // one bit per entry of kActivities
  bool api_by_call;  // API records are enabled call by call
  void *subscriber;
  uint32_t op_links;  // atomic: op ids are pushed to CUPTI
  uint8_t clock_id;   // of the records in this window
  bool closing;
  uint64_t closing_ns, flushed_ns, retry_ns;

  bool saved_thread_type;
  uint32_t thread_type;
  SavedAttribute saved[kTracedAttributes];

  CuptiPool pool;
  CuptiDecoder decoder;

  // Records that CUPTI dropped: in total, and not yet reported. Atomic.
  uint64_t dropped, unreported, unreported_since_ns;
};

// Finds out what the machine offers; called once per session. Checks for
// libcuda.so.1 first, so that the reason is "no NVIDIA driver" rather than an
// unknown error of a library that needs one. `cupti_path` may be null: then
// REPRISE_CUPTI_PATH is used.
void ProbeTracer(const char *cupti_path, DeviceTracer *tracer);

// Opens a window. Returns true if kernels are traced now or were not asked for;
// otherwise `facts.why` holds the reason.
bool BeginDeviceWindow(Agent *agent, uint32_t kinds);

// Ends the window. `now`: releases the subscription before it returns, which
// loses the times of kernels that are still running.
void EndDeviceWindow(Agent *agent, bool now);

// Called every turn: flushes at most once a second, finishes closing, and
// retries a window that could not begin.
void ServiceDevice(Agent *agent, uint64_t now_ns);

// Delivers the records of all finished kernels before it returns. Does not
// synchronize with the device.
void FlushDevice(Agent *agent);

// Called by InitializeInjection before any context exists, so that the device
// buffers can be kept small.
void PrepareDevice(DeviceTracer *tracer);

// Kernels that the calling thread launches from now on belong to `op`. Returns
// true if PopDeviceOps must undo it.
bool PushDeviceOp(Agent *agent, uint64_t op);
void PopDeviceOps(Agent *agent, int count);

// Finds and loads libcupti, and explains why one of its calls failed.

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
