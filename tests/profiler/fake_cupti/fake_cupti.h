// A libcupti without a device, for tests: the same symbols, buffers of the same
// layouts, and a handle to make it misbehave. Built once per layout; loaded by
// the agent through its normal path, and by the test through dlopen.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct FakeCupti {
  // ---- How it behaves; set by the test ----
  uint32_t version;       // what cuptiGetVersion says
  int no_driver;          // 999 or 15: every call that needs one fails
  int subscribe_result;   // not 0: cuptiSubscribe answers this
  char holder[64];        // not empty: the slot is taken by this tool
  int enable_result[64];  // per kind
  bool own_thread;        // full buffers are delivered by a thread
  bool untimed;           // kernels come with start = end = 0
  bool no_clock;          // refuses another clock than CLOCK_REALTIME
  uint64_t lose;          // records to drop instead of writing

  // ---- What happened; read by the test ----
  uint32_t calls;  // of any function
  uint32_t subscribes, unsubscribes, forced_flushes, plain_flushes;
  uint32_t enabled_kinds;  // how many are on now
  uint32_t buffers_out;    // handed out and not returned
  uint32_t buffers_refused;
  uint32_t dirty_buffers;  // said to be zeroed and were not
  uint32_t pops_of_nothing;
  uint64_t attribute[16];
  uint32_t thread_id_type;
  bool finalized;  // cuptiFinalize was called: never allowed
  bool period_set, serial_kernels;
  uint64_t (*clock)();

  // ---- What a program does ----
  // A kernel on this thread: its API call, external ids, its own record. With
  // `running` it has no end until Synchronize. Returns the correlation id.
  uint32_t (*Launch)(const char *name, uint64_t dur_ns, bool running);
  uint32_t (*LaunchGraph)(const char *name, uint32_t nodes, uint32_t graph);
  uint32_t (*Copy)(uint64_t bytes, uint32_t copy_kind);
  void (*Peer)(uint64_t bytes);
  void (*Set)(uint64_t bytes);
  void (*Memory)(uint64_t address, uint64_t bytes, bool release, uint32_t kind);
  void (*Pool)(uint64_t address, uint64_t bytes, uint32_t operation);
  void (*Unknown)();  // a record of a kind of the future
  void (*Overhead)(uint64_t ns);
  void (*Synchronize)();  // running kernels end
  // Another client's buffer comes back through whoever is registered.
  void (*ReturnForeignBuffer)();
};

extern "C" {
FakeCupti *FakeCuptiHandle();
uint32_t FakeCuptiLaunch(const char *name, uint64_t dur_ns);
}
