// SPDX-License-Identifier: Apache-2.0
//
// Builds chunks from raw slots: checks every field, turns kinds into columns,
// joins the two halves of a step report, and resolves the names in reports.
//
// A pure function of its arguments, so a batch whose commit failed is simply
// built again.
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
// `start_ns` is CLOCK_MONOTONIC. `dur_ns` of LOSS spans the first to the last
// dropped record. Records of an unknown kind or with an impossible value are
// omitted and counted as malformed.
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

struct BuildInput {
  std::span<const reprise_slot> records = {};
  // STEP_DONE records whose STEP_MEM has not arrived yet.
  std::span<const reprise_slot> pending = {};
  const NameTable* names = nullptr;
  // Finds the ops of kernels; it has already taken `records`. May be null.
  const OpJoin* join = nullptr;
  // Stop before a report whose name is unknown, because its DEFS may still
  // arrive. Otherwise the name becomes "name #17".
  bool wait_for_names = false;
  // No record will follow: unpaired STEP_DONE records become reports on their
  // own.
  bool last = false;
  // Go into a separate chunk after the records.
  std::span<const v1::Moment> moments = {};
  int64_t realtime_to_monotonic_ns = 0;
};

struct Built {
  std::vector<v1::Chunk> chunks;  // without a seq
  size_t used = 0;                // of `records`
  std::vector<reprise_slot> pending;
  uint64_t dropped = 0;    // sum over LOSS records
  uint64_t malformed = 0;  // records omitted
  bool waits_for_name = false;
};

// Chunks have at most kChunkRecords records and about kChunkBytes bytes.
inline constexpr size_t kChunkRecords = 4096;
inline constexpr size_t kChunkBytes = 512 << 10;
// At most this many threads are expected to report steps at the same time.
inline constexpr size_t kMaxPending = 64;

// Builds the chunks of a batch.
Built BuildChunks(const BuildInput& input);

// Returns the record with its time on CLOCK_MONOTONIC: almost always `slot`
// itself, otherwise `copy`. Null if its time is impossible.
const reprise_slot* OnClock(const reprise_slot& slot,
                            int64_t realtime_to_monotonic_ns,
                            reprise_slot& copy);

}  // namespace reprise::server
