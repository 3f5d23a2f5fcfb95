// Who this process is, as HELLO says it. Fixed for the life of a session, also
// across reconnections.
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
// Returns nullptr, or what is wrong with the arguments.
const char *Identify(const char *run_id, const char *family_run_id,
                     const char *labels, Identity *identity);

// "0191e7a0-...": 36 characters and a zero. Time-ordered (RFC 9562, version 7).
void NewUuidV7(char text[40]);

}  // namespace reprise::profiler
