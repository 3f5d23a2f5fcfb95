// A libcupti without a device, for tests: the same symbols, buffers of the same
// layouts, and a handle that makes it fail in chosen ways. Built once per
// layout; the agent loads it as it would load the real one, the test by dlopen.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct FakeCupti {
  // ---- How it behaves; set by the test ----
  uint32_t version;       // what cuptiGetVersion returns
  int no_driver;          // 999 or 15: returned by every call that needs one
  int subscribe_result;   // not 0: what cuptiSubscribe returns
  char holder[64];        // not empty: this tool is subscribed already
  int enable_result[64];  // per kind
  bool own_thread;        // a separate thread delivers full buffers
  bool untimed;           // kernels come with start = end = 0
  bool no_clock;          // refuses every clock except CLOCK_REALTIME
  // Kernels, copies and sets are timed by the device's own clock. When a buffer
  // is delivered, their times are interpolated between pairs of a device time
  // and a time of the clock callback: one taken then, and the one before, which
  // may be of any time since the callback was registered. So do NVIDIA's
  // headers describe it; when the real library takes its pairs is not known.
  bool interpolates;
  uint64_t lose;  // records to drop instead of writing

  // ---- What happened; read by the test ----
  uint32_t calls;  // of any function
  uint32_t subscribes, unsubscribes, forced_flushes, plain_flushes;
  uint32_t enabled_kinds;  // kinds that are enabled now
  uint32_t buffers_out;    // handed out and not returned
  uint32_t buffers_refused;
  uint32_t dirty_buffers;  // promised as zeroed but not zero
  uint32_t pops_of_nothing;
  uint64_t attribute[16];
  uint32_t thread_id_type;
  bool finalized;  // cuptiFinalize was called, which must not happen
  bool period_set, serial_kernels, hardware_events;
  uint64_t (*clock)();

  // ---- What a program does ----
  // Launches a kernel on this thread: its API call, external ids and its own
  // record. With `running` it does not end before Synchronize. Returns the
  // correlation id.
  uint32_t (*Launch)(const char *name, uint64_t dur_ns, bool running);
  uint32_t (*LaunchGraph)(const char *name, uint32_t nodes, uint32_t graph);
  uint32_t (*Copy)(uint64_t bytes, uint32_t copy_kind);
  void (*Peer)(uint64_t bytes);
  void (*Set)(uint64_t bytes);
  void (*Memory)(uint64_t address, uint64_t bytes, bool release, uint32_t kind);
  void (*Pool)(uint64_t address, uint64_t bytes, uint32_t operation);
  void (*Unknown)();  // a record of an unknown kind
  void (*Overhead)(uint64_t ns);
  void (*Synchronize)();  // ends the running kernels
  // Takes a pair of clocks, at whatever time; `off_ns` is added to the host's
  // side, as if it came from another clock.
  void (*TakeClockPair)(int64_t off_ns);
  // Returns another client's buffer to whoever is registered.
  void (*ReturnForeignBuffer)();
};

extern "C" {
FakeCupti *FakeCuptiHandle();
uint32_t FakeCuptiLaunch(const char *name, uint64_t dur_ns);
}
