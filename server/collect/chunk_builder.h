// SPDX-License-Identifier: Apache-2.0
//
// Raw slots to chunks: checks every field, turns kinds into columns, joins the
// two halves of a step report, and resolves the names that reports carry.
//
// A pure function of its arguments, so that a batch whose commit failed is
// simply built again.
//
//   kind        op           ptr         bytes       corr    extra
//   KERNEL      op, if known graph node  -           corr    flags
//   COPY, SET   op, if known -           bytes       corr    flags
//   LINK, API   external id  -           -           corr    cbid
//   OP_BEGIN    op           fwd thread  seq_nr      shapes  parent
//   OP_END      op           -           -           -       -
//   ALLOC       op           address     +/- bytes   -       what
//   STEP        -            -           -           -       step
//   CLOCK       -            realtime    -           -       boottime
//   LOSS        -            -           count       -       why
//   OOM         -            total       asked       -       free
//
// `start_ns` is CLOCK_MONOTONIC; `dur_ns` of LOSS reaches from the first to
// the last dropped record. Records of a kind we do not know, or with a value
// that cannot be, are left out and counted as malformed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "profiler/include/reprise_wire.h"
#include "reprise/v1/ingest.pb.h"
#include "server/collect/op_join.h"

namespace reprise::server {

// Interned texts of one session, by id.
using NameTable = std::unordered_map<uint32_t, std::string>;

// A chunk as the spool stores it and Ingest carries it, without its seq.
struct NewChunk {
  uint64_t t0_ns = 0;
  uint64_t t1_ns = 0;
  uint32_t count = 0;
  std::string body;  // a serialized Columns
  uint32_t crc32c = 0;
  uint64_t dropped_before = 0;
};

struct BuildInput {
  std::span<const reprise_slot> records = {};
  // STEP_DONE records whose STEP_MEM has not come yet.
  std::span<const reprise_slot> pending = {};
  const NameTable* names = nullptr;
  // Tells the ops of kernels; has taken `records`. May be absent.
  const OpJoin* join = nullptr;
  // Stop before a report whose name is unknown: its DEFS may still come.
  // Otherwise it becomes "name #17".
  bool wait_for_names = false;
  // No record will follow: pending halves become reports by themselves.
  bool last = false;
  // Go into a chunk of their own, behind the records.
  std::span<const v1::Moment> moments = {};
  int64_t realtime_to_monotonic_ns = 0;
};

struct Built {
  std::vector<NewChunk> chunks;
  size_t used = 0;  // of `records`
  std::vector<reprise_slot> pending;
  uint64_t dropped = 0;    // sum over LOSS records
  uint64_t malformed = 0;  // left out
  bool waits_for_name = false;
};

// Chunks have at most kChunkRecords records and about kChunkBytes bytes.
inline constexpr size_t kChunkRecords = 4096;
inline constexpr size_t kChunkBytes = 512 << 10;
// More threads than this never report steps at once.
inline constexpr size_t kMaxPending = 64;

Built BuildChunks(const BuildInput& input);

// The record with its time on CLOCK_MONOTONIC: itself, as almost always, or a
// copy. nullptr: its time cannot be.
const reprise_slot* OnClock(const reprise_slot& slot,
                            int64_t realtime_to_monotonic_ns,
                            reprise_slot& copy);

}  // namespace reprise::server
