/* SPDX-License-Identifier: Apache-2.0
 *
 * What the agent and the collector share: the ring in a memfd, and the
 * messages on the control socket. Little-endian, 64-bit, one machine.
 *
 * THE RING. A memfd, sealed against shrinking and growing (and further seals),
 * of 4,096 + slots * 64 bytes:
 *
 *   0          4096                                       4096 + slots*64
 *   | header   | slot 0 | slot 1 | ...                    | slot n-1 |
 *
 * A bounded queue with many writers and one reader, and a sequence word in each
 * slot (Vyukov). Slot i starts with sequence i. For position p,
 * slot = p mod slots:
 *
 *   writer  waits for sequence == p (else full: drop and count), reserves p by
 *           compare-and-swap on `head`, fills the slot, stores sequence = p+1;
 *   reader  a record is there when sequence == p+1; it copies the 64 bytes,
 *           checks the copy, and only after its batch is committed stores
 *           `tail` = p+1 and sequence = p + slots, which frees the slot.
 *
 * So a daemon that dies between reading and committing finds the records again.
 * Its spool holds the position up to which it has committed (stored in the same
 * transaction), and the daemon skips the records before it. A writer that dies
 * between reserving and publishing leaves a slot that never gets p+1: once the
 * control socket is at EOF, the reader counts such slots as torn.
 *
 * THE CONTROL SOCKET. Unix SOCK_SEQPACKET; one message per packet: a header
 * and a body of at most 16 KiB; file descriptors use SCM_RIGHTS. Bulk content
 * travels in memfds with all four seals (WRITE, SHRINK, GROW, SEAL).
 *
 * The reader trusts nothing in the header after the handshake: it keeps its
 * own slot count and tail and requires head - tail <= slots.
 */
#ifndef REPRISE_WIRE_H_
#define REPRISE_WIRE_H_

#include <stdint.h>

/* Records use the flags, kinds and states of the C ABI. */
#include "reprise_agent.h"

#define REPRISE_WIRE_MAGIC 0x31505252u /* "RRP1" */
#define REPRISE_RING_LAYOUT 1u
#define REPRISE_RING_HEADER_BYTES 4096u
#define REPRISE_SLOT_BYTES 64u
#define REPRISE_RING_MIN_SLOTS 4096u
#define REPRISE_RING_MAX_SLOTS (1u << 20)
#define REPRISE_RING_DEFAULT_SLOTS (1u << 18)

#define REPRISE_MAX_BODY_BYTES 16384u
#define REPRISE_MAX_GRAPH_BYTES (64u << 20)
#define REPRISE_MAX_PLAN_BYTES (16u << 20)
#define REPRISE_MAX_SNAPSHOT_BYTES (1u << 30)

/* The progress of the job, so that it is known if the job is killed: plain
 * stores to memory that outlives the process, no records. Zero means "unknown",
 * which is also what an older agent leaves here. The reader reads it once the
 * writer is gone, and validates what it finds. */
typedef struct {
  uint64_t step, step_ns;     /* of the newest STEP mark */
  uint64_t graph_id, plan_id; /* what the step runs under */
  uint64_t op;                /* 1 + the newest op of the graph that began */
  uint64_t phase;             /* numbered as reprise.v1.Phase */
  uint64_t pad[2];
} reprise_place;

/* head and tail have a cache line each: writers contend on head, the reader
 * writes tail. */
typedef struct {
  uint32_t magic, layout, slots, header_bytes;
  uint8_t pad0[48];
  uint64_t head; /* next position to be reserved */
  uint8_t pad1[56];
  uint64_t tail; /* all positions below it are committed */
  uint8_t pad2[56];
  uint64_t dropped; /* records that found the ring full, in total */
  uint64_t pushed;
  uint8_t pad3[48];
  reprise_place place;
} reprise_ring_header;

/* Numbered as reprise.v1.RecordKind. */
enum {
  REPRISE_RECORD_KERNEL = 1,
  REPRISE_RECORD_COPY = 2,
  REPRISE_RECORD_SET = 3,
  REPRISE_RECORD_LINK = 4,
  REPRISE_RECORD_API = 5,
  REPRISE_RECORD_OP_BEGIN = 6,
  REPRISE_RECORD_OP_END = 7,
  REPRISE_RECORD_ALLOC = 8,
  REPRISE_RECORD_STEP = 9,
  REPRISE_RECORD_CLOCK = 10,
  REPRISE_RECORD_LOSS = 11,
  REPRISE_RECORD_OOM = 12,
  REPRISE_RECORD_STEP_DONE = 13,
  REPRISE_RECORD_STEP_MEM = 14,
  REPRISE_RECORD_VERIFY = 15,
  REPRISE_RECORD_PLAN_STATE = 16
};

/* `why` of a LOSS. DEVICE: the device's own tracer dropped records; `count` is
 * a lower bound. */
enum { REPRISE_LOSS_RING_FULL = 1, REPRISE_LOSS_DEVICE = 2 };

/* `flags` of KERNEL, COPY, SET and ALLOC. UNTIMED: `dur` is 0 and `ts` is when the
 * record was read. IN_GRAPH: launched by a CUDA graph; `correlation` is that of
 * the graph's launch. COPY: its kind in the high byte. ALLOC: the phase. */
enum {
  REPRISE_KERNEL_UNTIMED = 1,
  REPRISE_KERNEL_IN_GRAPH = 2,
  REPRISE_KERNEL_COPY_KIND_SHIFT = 8
};

enum { REPRISE_CLOCK_MONOTONIC = 0, REPRISE_CLOCK_REALTIME = 1 };

typedef struct {
  uint64_t dur;
  uint32_t correlation, name, stream, context;
  uint64_t graph_node_or_bytes;
  uint32_t graph_id;
  uint16_t device, flags;
} reprise_body_kernel;
typedef struct {
  uint64_t external_id, dur;
  uint32_t correlation, cbid;
  uint8_t pad[16];
} reprise_body_api;
typedef struct {
  uint64_t op, parent;
  int64_t seq_nr;
  uint64_t fwd_thread;
  uint32_t name, shapes;
} reprise_body_op;
typedef struct {
  uint64_t address;
  int64_t bytes;
  uint64_t stream, op;
  int32_t device;
  uint32_t what;
} reprise_body_alloc;
typedef struct {
  uint64_t step;
  uint8_t pad[32];
} reprise_body_step;
typedef struct {
  uint64_t realtime, boottime;
  uint8_t pad[24];
} reprise_body_clock;
typedef struct {
  uint64_t last_ts, count;
  uint32_t why;
  uint8_t pad[20];
} reprise_body_loss;
typedef struct {
  uint64_t asked, total, free_bytes;
  int32_t device;
  uint8_t pad[12];
} reprise_body_oom;
/* A step report is two records, pushed one after the other: STEP_DONE, then
 * STEP_MEM with the same step. The reader joins them by thread and step. */
typedef struct {
  uint64_t step, plan_id, step_ns, peak_bytes;
  uint32_t flags, mismatches;
} reprise_body_step_done;
typedef struct {
  uint64_t step, reserved_bytes, device_bytes, plan_id;
  uint32_t recomputed, pad;
} reprise_body_step_mem;
typedef struct {
  uint64_t step, plan_id;
  uint32_t flags, checked, differing, first_name;
  uint64_t pad;
} reprise_body_verify;
typedef struct {
  uint64_t plan_id;
  uint32_t state, why_name;
  uint64_t own_ns, peak_bytes;
  uint8_t pad[8];
} reprise_body_plan_state;

typedef struct {
  uint64_t sequence;
  uint16_t kind;
  uint8_t clock_id, flags;
  uint32_t thread; /* gettid */
  uint64_t ts_ns;
  union {
    uint8_t bytes[40];
    reprise_body_kernel kernel;
    reprise_body_api api;
    reprise_body_op op;
    reprise_body_alloc alloc;
    reprise_body_step step;
    reprise_body_clock clock;
    reprise_body_loss loss;
    reprise_body_oom oom;
    reprise_body_step_done step_done;
    reprise_body_step_mem step_mem;
    reprise_body_verify verify;
    reprise_body_plan_state plan_state;
  } body;
} reprise_slot;

/* ---- Control socket ---- */

enum {
  /* up */
  REPRISE_MSG_HELLO = 1, /* reprise_msg_hello, labels text; fd: ring */
  REPRISE_MSG_DEFS = 2,  /* repeated {u32 id, u32 n, n bytes, padded to 4} */
  REPRISE_MSG_CAPS = 3,  /* text, one capability with its reason per line */
  REPRISE_MSG_BYE = 4,   /* reprise_msg_bye */
  REPRISE_MSG_GRAPH =
      5, /* reprise_msg_graph, budget\0 capabilities\0; fd: memfd */
  REPRISE_MSG_SNAPSHOT = 6, /* reprise_msg_bulk; fd: memfd of JSON */
  /* down */
  REPRISE_MSG_WELCOME = 16,     /* reprise_msg_welcome */
  REPRISE_MSG_REFUSED = 17,     /* text: one sentence */
  REPRISE_MSG_PLAN = 18,        /* reprise_msg_plan; fd: memfd of proto3 JSON */
  REPRISE_MSG_PLAN_STATUS = 19, /* reprise_msg_plan_status, text */
  REPRISE_MSG_COMMAND = 20      /* reprise_msg_command */
};

typedef struct {
  uint32_t magic;
  uint16_t type, layout;
  uint32_t size; /* of the body */
  uint32_t request;
} reprise_msg_header;

typedef struct {
  uint32_t abi, ring_layout, pid, rank, local_rank, world;
  uint64_t pid_start_ticks; /* field 22 of /proc/self/stat */
  int64_t monotonic_ns, realtime_ns;
  uint32_t clock_id, slots;
  char session_id[40], run_id[72], boot_id[40], host[64]; /* zero-terminated */
  uint32_t labels_bytes, pad;                             /* text follows */
} reprise_msg_hello;
typedef struct {
  uint64_t pushed, dropped;
} reprise_msg_bye;
typedef struct {
  uint64_t graph_id, bytes, static_bytes, device_bytes;
  uint32_t budget_bytes, capabilities_bytes; /* including the final 0 */
  uint64_t device_free_bytes; /* omitted if this and all that follow are 0 */
  uint64_t reserve_bytes, request_id, replaces,
      more_bytes; /* omitted if all four are 0 */
} reprise_msg_graph;
/* Bytes of a reprise_msg_graph without optional fields, and of one with
 * device_free_bytes alone. */
enum { REPRISE_MSG_GRAPH_LEAST = 40, REPRISE_MSG_GRAPH_DEVICE = 48 };
typedef struct {
  uint64_t bytes;
} reprise_msg_bulk;
typedef struct {
  uint32_t ring_layout, pad;
  char version[32];
} reprise_msg_welcome;
/* `graph_id` of an answer: the request_id of the request, or the id of its
 * graph where the request has none. */
typedef struct {
  uint64_t graph_id, plan_id, bytes, predicted_peak, predicted_ns;
  uint32_t flags, pad;
} reprise_msg_plan;
enum {
  REPRISE_PLAN_SOLVING = 1,
  REPRISE_PLAN_INFEASIBLE = 2,
  REPRISE_PLAN_NOT_PLANNED = 3,
  REPRISE_PLAN_UNREACHABLE = 4
};
typedef struct {
  uint64_t graph_id, smallest_budget;
  uint32_t status, text_bytes;
} reprise_msg_plan_status;
enum {
  REPRISE_COMMAND_FLUSH = 1,
  REPRISE_COMMAND_WINDOW_BEGIN = 2,
  REPRISE_COMMAND_WINDOW_END = 3,
  REPRISE_COMMAND_PAUSE = 4,
  REPRISE_COMMAND_RESUME = 5
};
typedef struct {
  uint32_t command, kinds;
  uint64_t steps;
} reprise_msg_command;

#if defined(__cplusplus)
static_assert(sizeof(reprise_slot) == REPRISE_SLOT_BYTES, "a slot is 64 bytes");
static_assert(sizeof(reprise_ring_header) == 320,
              "the header's layout is fixed");
static_assert(
    sizeof(reprise_body_kernel) == 40 && sizeof(reprise_body_api) == 40 &&
        sizeof(reprise_body_op) == 40 && sizeof(reprise_body_alloc) == 40 &&
        sizeof(reprise_body_step) == 40 && sizeof(reprise_body_clock) == 40 &&
        sizeof(reprise_body_loss) == 40 && sizeof(reprise_body_oom) == 40 &&
        sizeof(reprise_body_step_done) == 40 &&
        sizeof(reprise_body_step_mem) == 40 &&
        sizeof(reprise_body_verify) == 40 &&
        sizeof(reprise_body_plan_state) == 40,
    "a body is 40 bytes");
static_assert(sizeof(reprise_msg_header) == 16, "a message header is 16 bytes");
#endif

#endif /* REPRISE_WIRE_H_ */
