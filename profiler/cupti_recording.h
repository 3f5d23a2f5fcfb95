// REPRISE_RECORD_CUPTI=folder writes every CUPTI buffer to a file of its own,
// so that what a GPU produced can be decoded again without one. For debugging
// only: it writes to disk on the thread that delivers the buffer.
//
//   folder/cupti-<pid>-<n>.rrc
//   CuptiRecordingHeader   magic, API version, clock, sizes
//   buffer                 `valid` bytes, as CUPTI filled it
//   names                  `names` times {u64 address, u32 n, n bytes}: the
//                          texts that pointers in the buffer refer to
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler {

struct Agent;

constexpr uint32_t kCuptiRecordingMagic = 0x31435252u;  // "RRC1"
constexpr uint32_t kMaxRecordings = 256;                // per process

struct CuptiRecordingHeader {
  uint32_t magic, cupti_version, driver_version, clock_id;
  uint64_t valid;
  uint32_t names, pad;
};

void RecordBuffer(Agent *agent, uint8_t *buffer, size_t valid);

}  // namespace reprise::profiler
