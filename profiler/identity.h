// The identity of this process as HELLO states it. Fixed for the life of a
// session, including reconnections.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/include/reprise_wire.h"

namespace reprise::profiler {

constexpr size_t kMaxLabelBytes = 8192;

struct Identity {
  reprise_msg_hello hello;
  char labels[kMaxLabelBytes];  // hello.labels_bytes of them
};

// Fills everything but `slots`. The run is `run_id`, else REPRISE_RUN_ID, else
// `family_run_id` (a forked child stays in its parent's run), else a new one.
// Returns null, or what is wrong with the arguments.
const char *Identify(const char *run_id, const char *family_run_id,
                     const char *labels, Identity *identity);

// Writes a time-ordered UUID (RFC 9562, version 7): 36 characters and a zero.
void NewUuidV7(char text[40]);

}  // namespace reprise::profiler
