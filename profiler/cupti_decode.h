// Converts one activity record of CUPTI into one record of the ring.
//
// Runs on CUPTI's thread or inside a flush: makes no CUPTI call and takes no
// lock but that of the names. Records are not ordered across buffers; the
// reader must sort them.
#pragma once

#include <stdint.h>

#include "profiler/include/reprise_wire.h"
#include "profiler/names.h"

namespace reprise::profiler {

// Caches the ids of kernel names by the address of their text, to avoid a hash
// and a lock. An entry packs the address (47 bits) and the id (17 bits).
constexpr uint32_t kNameCacheEntries = 1024;

struct CuptiDecoder {
  uint64_t name_cache[kNameCacheEntries];  // atomic

  // Atomic counts. `unknown` counts kinds that this agent does not know.
  uint64_t untimed, unknown, overhead_ns;
};

struct DecodeContext {
  CuptiDecoder *decoder;
  Names *names;
  uint64_t now_ns;         // for records that carry no time
  uint8_t clock_id;        // of the times in the records
  bool overhead_has_data;  // an Overhead3, whose data must be freed
};

enum class Decoded {
  kRecord,   // push `slot`
  kNothing,  // understood; nothing to push
  kUnknown   // unknown kind: skip and count it
};

// Converts `record` into `*slot` if the result is kRecord.
Decoded DecodeActivity(const uint8_t *record, const DecodeContext &context,
                       reprise_slot *slot);

}  // namespace reprise::profiler
