/* SPDX-License-Identifier: Apache-2.0
 *
 * libreprise_agent.so: the C ABI through which a training process reports
 * what it does and receives a plan.
 *
 * C99; needs libc only. Safe across fork: a forked child is inert until it
 * calls reprise_start itself. No call throws or aborts, and none blocks for
 * more than 1 ms unless its comment says so. Every struct starts with
 * `struct_size` (set it to sizeof); fields are only ever appended, and the
 * agent touches only as many bytes as the caller's size.
 *
 *   reprise_start(NULL);
 *   // once, after a captured step:
 *   reprise_graph_submit(json, n, &want, &graph);
 *   // until it returns REPRISE_OK:
 *   reprise_plan_wait(graph, 0, 200, &plan);
 *   ... apply plan.json ...
 *   // every step:
 *   reprise_step_done(&report);
 *   reprise_step(step);
 */
#ifndef REPRISE_AGENT_H_
#define REPRISE_AGENT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REPRISE_ABI 1u

typedef enum {
  REPRISE_OK = 0,
  REPRISE_DEGRADED = 1, /* works, but some capability is missing */
  REPRISE_INERT = 2,    /* does nothing: no collector, or a forked child */
  REPRISE_PENDING = 3,  /* not yet; ask again */
  REPRISE_EINVAL = -1,
  REPRISE_EABI = -2,
  REPRISE_ETOOBIG = -3,
  REPRISE_EREFUSED = -4 /* the reason is in `why` */
} reprise_status;

/* In every field, NULL or 0 means the default. */
typedef struct {
  uint32_t struct_size, abi;
  uint32_t ring_slots; /* power of two, 4,096 to 2^20; default 2^18 */
  uint32_t flags;
  const char
      *socket_path; /* else REPRISE_SOCKET, /run/reprise/agent.sock, per user */
  const char *
      sink_path; /* "file:PATH": records to a file instead; else REPRISE_SINK */
  const char *cupti_path; /* else REPRISE_CUPTI_PATH, else a search */
  const char *run_id;     /* else REPRISE_RUN_ID, else a new UUIDv7 */
  const char *labels;     /* "key=value\n..." */
} reprise_config;

/* A sentence, always terminated. A caller built when it had 192 bytes gets as
 * much as it has room for. */
#define REPRISE_WHY_BYTES 1024

typedef struct {
  uint32_t struct_size;
  uint32_t cupti; /* 0 none, 1 allocator only, 2 kernels, 3 kernels and ops */
  uint32_t cupti_version, driver_version;
  uint64_t pushed, dropped, untimed, cupti_dropped, cupti_device_bytes;
  char holder[64], why[REPRISE_WHY_BYTES];
} reprise_caps;

reprise_status reprise_start(
    const reprise_config *config); /* idempotent; connects, <= 1 s */
reprise_status reprise_stop(void); /* drains <= 1 s, then closes */
reprise_status reprise_capabilities(reprise_caps *caps);

/* What a window traces, as bits; 0 asks for everything. */
enum {
  REPRISE_KIND_OPS = 1,
  REPRISE_KIND_ALLOCS = 2,
  REPRISE_KIND_KERNELS = 4 /* needs CUPTI */
};
/* Open and close a window. DEGRADED: kernels were asked for but cannot be
 * traced; `why` of the capabilities holds the reason. Host clock and allocator
 * events are still recorded.
 *
 * With KERNELS these two call CUPTI, which takes milliseconds, and longer the
 * first time. So does a reprise_step that receives the collector's command to
 * open or close a window. CUPTI is not touched before. Kernels that are still
 * running when a window ends deliver their times with later steps, or with
 * reprise_flush. With OPS as well, each kernel is tied to the innermost op of
 * the thread that launched it. */
reprise_status reprise_window_begin(uint32_t kinds);
reprise_status reprise_window_end(void);
/* Returns the kinds of the open window; 0 if none is open, or while paused. A
 * window may also be opened by a command of the collector, so an adapter that
 * records only inside windows should ask once per step. */
uint32_t reprise_window_kinds(void);
/* Release CUPTI for another profiler at once, and take it back. */
reprise_status reprise_pause(void);
reprise_status reprise_resume(void);
uint32_t reprise_abi_version(void);

/* Returns the id of a text, always the same for the same text; 0 if the table
 * is full. */
uint32_t reprise_intern(const char *utf8, size_t n);

/* Mark the beginning and end of one execution of an op, which `op` identifies.
 * Call them on the thread that runs the op, including autograd's. `name` and
 * `shapes` are interned; `seq_nr` and `fwd_thread` tie a backward op to the
 * forward op that created it. Ops nest up to 16 deep; an op that is never ended
 * ends with the one around it, or with the step. */
void reprise_op_begin(uint64_t op, uint32_t name, uint32_t shapes,
                      uint64_t parent, int64_t seq_nr, uint64_t fwd_thread);
void reprise_op_end(uint64_t op);

/* Marks the start of a step. Also reads commands, reconnects (at most once a
 * second) and sends what was queued. */
void reprise_step(uint64_t step);

/* Record the progress within a step, so that it is known if the job is killed.
 * These only store to shared memory and make no records, so they are cheap
 * enough to call all the time. reprise_step resets all three.
 *
 * `graph_id` and `plan_id` (0: none) are what the step runs under. Then
 * reprise_at(1 + op) says that this op of the graph begins, and reprise_at(0)
 * that the op is no longer known. `phase` is 1 forward, 2 backward, 3
 * optimizer, 0 between steps. */
void reprise_step_under(uint64_t graph_id, uint64_t plan_id);
void reprise_phase(uint32_t phase);
void reprise_at(uint64_t op_plus_one);

enum {
  REPRISE_ALLOC = 0,
  REPRISE_FREE = 1,
  REPRISE_SEGMENT = 2,
  REPRISE_MAP = 3,
  REPRISE_UNMAP = 4,
  REPRISE_POOL = 5,
  REPRISE_DRIVER = 6,
  /* `bytes` were alive before the first ALLOC of a window, at `ts`. */
  REPRISE_BASELINE = 7
};
/* Records an allocation (bytes > 0) or a free (bytes < 0). ts 0: now. */
void reprise_alloc(uint64_t ptr, int64_t bytes, int32_t device, uint64_t stream,
                   uint32_t what, uint64_t ts_or_0);
void reprise_oom(int32_t device, uint64_t asked, uint64_t total,
                 uint64_t free_bytes);
/* Submits what is in memory: proto3 JSON of reprise.v1.Moment. Copies n bytes.
 * The collector reads at most 1 MiB. */
reprise_status reprise_snapshot(const void *json, size_t n);
reprise_status reprise_flush(uint32_t timeout_ms); /* may block for it */
int InitializeInjection(void);                     /* always returns 1 */

/* ---- Executor hook ---- */

typedef struct {
  uint32_t struct_size, flags;
  const char *budget; /* "22GiB" "90%" "fit" "0.5x"; parsed by the server */
  /* Executors in order of preference with options,
   * "tape:seeded_ok=1:ns_per_op=9000" */
  const char *capabilities;
  uint64_t static_bytes;
  uint64_t device_bytes;      /* total memory, for "90%" */
  uint64_t device_free_bytes; /* free plus what the job holds, for "fit" */
  /* Held back inside the budget for what the graph does not show. */
  uint64_t reserve_bytes;
  /* Chosen by the caller: names the answer, so that several plans can be
   * requested for one graph. 0: the graph's id names it. */
  uint64_t request_id;
  /* Id of a plan that turned out to need more_bytes more than it says: requests
   * one in its place that leaves them free. 0: none. */
  uint64_t replaces, more_bytes;
} reprise_want;

typedef struct {
  uint32_t struct_size, flags;
  uint64_t graph_id, plan_id, predicted_peak, predicted_ns;
  const void *json; /* proto3 JSON of reprise.v1.Plan; mapped until release */
  size_t json_bytes;
  char why[REPRISE_WHY_BYTES];
} reprise_plan;

enum {
  REPRISE_STEP_PLANNED = 1,  /* it ran under a plan */
  REPRISE_STEP_KEPT_ALL = 2, /* mismatch: saved everything from there */
  REPRISE_STEP_OOM = 4,
  REPRISE_STEP_WINDOW = 8,     /* traced: its times are not representative */
  REPRISE_STEP_INCOMPLETE = 16 /* records are known to be missing */
};

typedef struct {
  uint32_t struct_size, flags;
  uint64_t step, plan_id, step_ns;
  uint64_t
      peak_bytes; /* most bytes alive in the step, static memory included */
  uint64_t reserved_bytes; /* segments */
  uint64_t device_bytes;   /* whole process */
  uint32_t recomputed, mismatches;
} reprise_step_report;

enum {
  REPRISE_VERIFY_BITWISE = 1,
  REPRISE_VERIFY_WITHIN_NOISE = 2,
  REPRISE_VERIFY_FAILED = 4,
  REPRISE_VERIFY_VALUES = 8 /* of recomputed tensors, not gradients */
};

typedef struct {
  uint32_t struct_size, flags;
  uint64_t step, plan_id;
  uint32_t checked, differing, first_name; /* first_name: interned */
} reprise_verify_report;

/* Submits a step graph and asks for a plan. Copies n bytes, which may take
 * milliseconds. PENDING: sent or queued. INERT: no plan will come. ETOOBIG:
 * above 64 MiB. A request with the request_id of an earlier one replaces it. */
reprise_status reprise_graph_submit(const void *json, size_t n,
                                    const reprise_want *want,
                                    uint64_t *graph_id);
/* Asks for the plan of a request: its request_id, or the id of its graph if
 * that was 0. OK: a plan other than have_plan_id is mapped. PENDING: not yet.
 * EREFUSED: none will come, for the reason in `why`; if the budget is proven
 * impossible, predicted_peak holds the smallest budget that is not ruled out.
 * INERT: no collector. */
reprise_status reprise_plan_poll(uint64_t request_id, uint64_t have_plan_id,
                                 reprise_plan *plan);
/* Like reprise_plan_poll, but blocks up to timeout_ms. PENDING on EINTR. */
reprise_status reprise_plan_wait(uint64_t request_id, uint64_t have_plan_id,
                                 uint32_t timeout_ms, reprise_plan *plan);
void reprise_plan_release(reprise_plan *plan);

enum {
  REPRISE_PLAN_APPLIED = 1,
  REPRISE_PLAN_REFUSED = 2,   /* this executor cannot run the plan */
  REPRISE_PLAN_STOPPED = 3,   /* without a reason: the program ended it */
  REPRISE_PLAN_UNCHECKED = 4, /* gradients are not compared */
  REPRISE_PLAN_NONE = 5,      /* plan_id 0: the job trains without one */
  REPRISE_JOB_FAILED = 6,     /* plan_id 0: an error ended the program */
  REPRISE_PLAN_LEFT = 7,      /* steps differ from the captured one; why: how */
  /* Step times are not comparable with those without a plan, which were measured
   * under another load; without a reason: they are. */
  REPRISE_PLAN_OTHER_LOAD = 8
};
void reprise_plan_state(uint64_t plan_id, uint32_t state, uint32_t why_name);
/* Reports REPRISE_PLAN_APPLIED, with the time per step that the executor adds
 * to the plan's ops, and the peak when it runs the plan (0: as predicted). */
void reprise_plan_applied(uint64_t plan_id, uint64_t own_ns,
                          uint64_t peak_bytes);
void reprise_step_done(const reprise_step_report *report);
void reprise_verify(const reprise_verify_report *report);

/* ---- For CPython ----
 *
 * reprise_op_begin and reprise_op_end as builtin functions of CPython 3.10 and
 * later: a foreign-function call would cost more than the op mark itself. The
 * functions they need from its stable ABI are passed in once, so that no header
 * or library of Python is needed here. Call them with the GIL held, or in a
 * build without one.
 *
 * Arguments are checked, never truncated: an int out of range raises
 * OverflowError and anything but an int TypeError; then nothing is recorded. */
typedef struct {
  uint32_t struct_size, flags;
  unsigned long long (*as_u64)(void *);    /* PyLong_AsUnsignedLongLong */
  long long (*as_i64)(void *);             /* PyLong_AsLongLong */
  void *(*occurred)(void);                 /* PyErr_Occurred */
  void (*raise)(void *kind, const char *); /* PyErr_SetString */
  void (*retain)(void *);                  /* Py_IncRef */
  void *none, *type_error, *overflow_error;
} reprise_python;
reprise_status reprise_python_bind(const reprise_python *python);
/* METH_FASTCALL: op, name=0, shapes=0, parent=0, seq_nr=-1, fwd_thread=0. */
void *reprise_python_op_begin(void *self, void *const *arguments, ptrdiff_t n);
/* METH_O: op. */
void *reprise_python_op_end(void *self, void *op);
/* METH_O: 1 + op, as for reprise_at. */
void *reprise_python_at(void *self, void *op_plus_one);

#ifdef __cplusplus
}
#endif
#endif /* REPRISE_AGENT_H_ */
