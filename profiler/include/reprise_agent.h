/* SPDX-License-Identifier: Apache-2.0
 *
 * libreprise_agent.so: the C ABI through which a training process reports
 * what it does and receives a plan.
 *
 * C99, needs libc only. Safe across fork: a forked child is inert until it
 * calls reprise_start itself. No call throws or aborts, and none blocks for
 * more than 1 ms unless it says so. Every struct starts with `struct_size`
 * (set it to sizeof); fields are only ever appended, and the agent touches no
 * more than the caller's size.
 *
 *   reprise_start(NULL);
 *   reprise_graph_submit(json, n, &want, &graph);     once, after a captured
 * step reprise_plan_wait(graph, 0, 200, &plan);          until OK
 *   ... apply plan.json ...
 *   reprise_step_done(&report); reprise_step(step);   every step
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

/* NULL or 0 means the default everywhere. */
typedef struct {
  uint32_t struct_size, abi;
  uint32_t ring_slots; /* power of two, 4,096 to 2^20; default 2^18 */
  uint32_t flags;
  const char
      *socket_path; /* else REPRISE_SOCKET, /run/reprise/agent.sock, per user */
  const char *
      sink_path; /* "file:PATH": records to a file instead; else REPRISE_SINK */
  const char *cupti_path; /* else REPRISE_CUPTI_PATH, else one is looked for */
  const char *run_id;     /* else REPRISE_RUN_ID, else a new UUIDv7 */
  const char *labels;     /* "key=value\n..." */
} reprise_config;

typedef struct {
  uint32_t struct_size;
  uint32_t cupti; /* 0 none, 1 allocator only, 2 kernels, 3 kernels and ops */
  uint32_t cupti_version, driver_version;
  uint64_t pushed, dropped, untimed, cupti_dropped, cupti_device_bytes;
  char holder[64], why[192];
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
/* DEGRADED: kernels were asked for and cannot be traced; `why` of the
 * capabilities says it. The host clock and allocator events go on.
 *
 * With KERNELS these two call CUPTI: milliseconds, the first time more; so does
 * the reprise_step that finds a collector's command to open or close a window.
 * Nothing of CUPTI is touched before. Kernels that still run when a window ends
 * bring their times with later steps, or with reprise_flush. With OPS as well,
 * kernels are tied to the innermost op of the thread that launches them. */
reprise_status reprise_window_begin(uint32_t kinds);
reprise_status reprise_window_end(void);
/* The kinds of the open window, 0 when none is open or while paused. A window
 * is opened here or by the collector's command: an adapter that records only
 * inside windows asks once a step. */
uint32_t reprise_window_kinds(void);
/* Gives CUPTI to another profiler at once, and takes it again. */
reprise_status reprise_pause(void);
reprise_status reprise_resume(void);
uint32_t reprise_abi_version(void);

/* Text to id, cached; the same text has the same id. 0: the table is full. */
uint32_t reprise_intern(const char *utf8, size_t n);

/* `op` names this one execution; on the thread that runs it, autograd's too.
 * `name` and `shapes` are interned; `seq_nr` and `fwd_thread` tie a backward op
 * to the forward op that made it. Up to 16 ops deep; an op that is never ended
 * ends with the one around it, or with the step. */
void reprise_op_begin(uint64_t op, uint32_t name, uint32_t shapes,
                      uint64_t parent, int64_t seq_nr, uint64_t fwd_thread);
void reprise_op_end(uint64_t op);

/* Step mark, at the start of a step. Also reads commands, reconnects (at most
 * once a second) and sends what was queued. */
void reprise_step(uint64_t step);

/* Where the step is, for whoever asks after the job was killed: stores in
 * shared memory, no records, so they are free to be made all the time.
 * reprise_step forgets all three.
 *
 * `graph_id` and `plan_id` (0: none) are what the step runs under; then
 * reprise_at(1 + op) says that op of that graph begins, 0 that it is not known
 * any more. `phase` is 1 forward, 2 backward, 3 optimizer, 0 between steps. */
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
  /* Bytes alive before the first ALLOC of a window: `bytes`, at `ts`. */
  REPRISE_BASELINE = 7
};
/* bytes > 0 allocates, bytes < 0 frees. ts 0: now. */
void reprise_alloc(uint64_t ptr, int64_t bytes, int32_t device, uint64_t stream,
                   uint32_t what, uint64_t ts_or_0);
void reprise_oom(int32_t device, uint64_t asked, uint64_t total,
                 uint64_t free_bytes);
/* What is in memory: proto3 JSON of reprise.v1.Moment, at most 1 MiB (more is
 * carried, but not read). Copies n bytes. */
reprise_status reprise_snapshot(const void *json, size_t n);
reprise_status reprise_flush(uint32_t timeout_ms); /* may block that long */
int InitializeInjection(void);                     /* always returns 1 */

/* ---- Executor hook ---- */

typedef struct {
  uint32_t struct_size, flags;
  const char *budget; /* "22GiB" "90%" "fit" "0.5x"; parsed by the server */
  /* Executors in order of preference with options,
   * "tape:seeded_ok=1:ns_per_op=9000" */
  const char *capabilities;
  uint64_t static_bytes;
  uint64_t device_bytes;      /* the whole of the device, for "90%" */
  uint64_t device_free_bytes; /* what is free and what the job holds: "fit" */
} reprise_want;

typedef struct {
  uint32_t struct_size, flags;
  uint64_t graph_id, plan_id, predicted_peak, predicted_ns;
  const void *json; /* proto3 JSON of reprise.v1.Plan; mapped until release */
  size_t json_bytes;
  char why[192];
} reprise_plan;

enum {
  REPRISE_STEP_PLANNED = 1,  /* ran under a plan */
  REPRISE_STEP_KEPT_ALL = 2, /* a mismatch: kept everything from there on */
  REPRISE_STEP_OOM = 4,
  REPRISE_STEP_WINDOW = 8,     /* tracing was on: times not representative */
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
  REPRISE_VERIFY_VALUES = 8 /* of tensors that were made again, not gradients */
};

typedef struct {
  uint32_t struct_size, flags;
  uint64_t step, plan_id;
  uint32_t checked, differing, first_name; /* first_name: interned */
} reprise_verify_report;

/* Copies n bytes (milliseconds). PENDING: sent or queued. INERT: train on
 * without a plan. ETOOBIG: above 64 MiB. */
reprise_status reprise_graph_submit(const void *json, size_t n,
                                    const reprise_want *want,
                                    uint64_t *graph_id);
/* OK: a plan other than have_plan_id is mapped. PENDING: not yet. EREFUSED:
 * none will come, `why` says so (a budget proven impossible: predicted_peak
 * holds the smallest budget not ruled out). INERT: no collector. */
reprise_status reprise_plan_poll(uint64_t graph_id, uint64_t have_plan_id,
                                 reprise_plan *plan);
/* The same; blocks up to timeout_ms, returns PENDING on EINTR. */
reprise_status reprise_plan_wait(uint64_t graph_id, uint64_t have_plan_id,
                                 uint32_t timeout_ms, reprise_plan *plan);
void reprise_plan_release(reprise_plan *plan);

enum {
  REPRISE_PLAN_APPLIED = 1,
  REPRISE_PLAN_REFUSED = 2,   /* this executor cannot run it */
  REPRISE_PLAN_STOPPED = 3,   /* no reason: the program let it go */
  REPRISE_PLAN_UNCHECKED = 4, /* gradients are not compared */
  REPRISE_PLAN_NONE = 5,      /* plan_id 0: the job trains without one */
  REPRISE_JOB_FAILED = 6,     /* plan_id 0: an error ends the program */
  REPRISE_PLAN_LEFT = 7       /* steps differ from the captured one: how */
};
void reprise_plan_state(uint64_t plan_id, uint32_t state, uint32_t why_name);
/* REPRISE_PLAN_APPLIED, with what the executor needs for itself per step beyond
 * the plan's ops, and the peak as it runs the plan (0: as the plan says). */
void reprise_plan_applied(uint64_t plan_id, uint64_t own_ns,
                          uint64_t peak_bytes);
void reprise_step_done(const reprise_step_report *report);
void reprise_verify(const reprise_verify_report *report);

/* ---- For CPython ----
 *
 * reprise_op_begin and reprise_op_end as builtin functions of CPython 3.10 and
 * later: a foreign-function call costs more than all the rest of an op mark.
 * What they need of its stable ABI is handed in once, so that no header and no
 * library of Python is needed here. Called with the GIL held, or without one.
 *
 * Arguments are checked, never cut: a number outside of its type raises
 * OverflowError, anything but an int TypeError, and nothing is recorded. */
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
/* METH_O: 1 + op, as reprise_at. */
void *reprise_python_at(void *self, void *op_plus_one);

#ifdef __cplusplus
}
#endif
#endif /* REPRISE_AGENT_H_ */
