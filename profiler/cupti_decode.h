// One activity record of CUPTI's to one record of the ring.
//
// Runs on CUPTI's thread or inside a flush: no CUPTI call, no lock but that of
// the names. Records come unordered across buffers; whoever reads them sorts.
#pragma once

#include <stdint.h>

#include "profiler/include/reprise_wire.h"
#include "profiler/names.h"

namespace reprise::profiler {

// Kernel names by the address of their text: one comparison instead of a hash
// and a lock. An entry is the address (47 bits) and the id (17 bits).
constexpr uint32_t kNameCacheEntries = 1024;

struct CuptiDecoder {
  uint64_t name_cache[kNameCacheEntries];  // atomic

  // Counts, atomic. `unknown`: kinds that this agent does not know.
  uint64_t untimed, unknown, overhead_ns;
};

struct DecodeContext {
  CuptiDecoder *decoder;
  Names *names;
  uint64_t now_ns;         // for records that carry no time
  uint8_t clock_id;        // of the times in the records
  bool overhead_has_data;  // an Overhead3: its data is to be freed
};

enum class Decoded {
  kRecord,   // `slot` is to be pushed
  kNothing,  // understood, and nothing to push
  kUnknown   // skipped and counted
};

Decoded DecodeActivity(const uint8_t *record, const DecodeContext &context,
                       reprise_slot *slot);

}  // namespace reprise::profiler
