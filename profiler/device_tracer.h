// The seam between the agent and a device's own tracer (CUPTI).
//
// Nothing of CUPTI is touched before the first window. A window subscribes,
// which is the etiquette lock among its clients, enables, and puts everything
// back when it ends:
//
//   idle ──Begin──▶ tracing ──End──▶ closing ──all buffers back──▶ idle
//     │ 39: held by another tool       └─ 2 s: flushed by force ─▶ idle
//     └──▶ waiting (tries again every second while the window is open)
//   anything else that fails ──▶ broken: inert for good, as every failing call
//                                would look for a driver again
//
// While closing, kernels that were running when the window ended still bring
// their times; only then is the slot given free, so that no buffer of ours is
// ever handed to another client's callback. Clock, thread ids and attributes
// are CUPTI's own again afterwards: outside a window our clock callback
// answers CLOCK_REALTIME, its default.
//
// All calls but PushDeviceOp and PopDeviceOps under the control lock, which no
// callback of CUPTI's takes. Begin and End may take milliseconds.
#pragma once

#include <stdint.h>

#include "profiler/cupti_abi.h"
#include "profiler/cupti_decode.h"
#include "profiler/cupti_pool.h"

namespace reprise::profiler {

struct Agent;
struct Ring;

struct TracerFacts {
  uint32_t level;  // as reprise_caps.cupti
  uint32_t cupti_version, driver_version;
  uint64_t device_bytes;  // at most; 0 outside a window
  char holder[64];        // who else traces; empty: nobody known
  char why[192];          // why `level` is not 3
};

// An attribute of CUPTI's as it was before the window.
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
  char path[256];                     // of libcupti, when it was named
  char recording[256];                // REPRISE_RECORD_CUPTI
  uint32_t recorded;                  // atomic: files written
  bool all_api, no_api, graph_trace;  // REPRISE_CUPTI_OPTIONS

  uint32_t wanted;   // kinds of the open window, 0: none
  uint32_t enabled;  // of kActivities, a bit each
  bool api_by_call;  // enabled call by call
  void *subscriber;
  uint32_t op_links;  // atomic: ops push their ids
  uint32_t clock;     // atomic: our clock is CLOCK_MONOTONIC now
  uint8_t clock_id;   // of the records of this window
  bool closing;
  uint64_t closing_ns, flushed_ns, retry_ns;

  bool saved_thread_type;
  uint32_t thread_type;
  SavedAttribute saved[kTracedAttributes];

  CuptiPool pool;
  CuptiDecoder decoder;

  // Records that CUPTI dropped, in all and not yet reported. Atomic.
  uint64_t dropped, unreported, unreported_since_ns;
  uint32_t drop_news;  // atomic: the capabilities have changed
};

// What is there: called once per session. Looks for libcuda.so.1 first, so that
// the reason is "no NVIDIA driver" and not an unknown error of a library that
// needs one. `cupti_path` may be null: REPRISE_CUPTI_PATH.
void ProbeTracer(const char *cupti_path, DeviceTracer *tracer);

// True when kernels are traced from here on, or were not asked for; else
// `facts.why` says why not.
bool BeginDeviceWindow(Agent *agent, uint32_t kinds);

// `now`: the slot is given free before it returns, at the price of the times of
// kernels that still run.
void EndDeviceWindow(Agent *agent, bool now);

// From every turn: flushes at most once a second, closes, tries again.
void ServiceDevice(Agent *agent, uint64_t now_ns);

// Records of finished kernels come before this returns. Syncs nothing.
void FlushDevice(Agent *agent);

// In InitializeInjection, before any context: device buffers stay small.
void PrepareDevice(DeviceTracer *tracer);

// For the calling thread: kernels launched from here on belong to `op`. True:
// there is something to pop.
bool PushDeviceOp(Agent *agent, uint64_t op);
void PopDeviceOps(Agent *agent, int count);

}  // namespace reprise::profiler
