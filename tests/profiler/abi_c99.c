/* Compiles only if the header is C99 and the library links into a C program. */
#include <stdio.h>
#include <string.h>

#include "profiler/include/reprise_agent.h"
#include "profiler/include/reprise_sink.h"

int main(void) {
  reprise_config config;
  reprise_caps caps;
  reprise_status status;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.abi = REPRISE_ABI;
  config.ring_slots = REPRISE_RING_MIN_SLOTS;
  config.socket_path = "/nonexistent/agent.sock";
  memset(&caps, 0, sizeof caps);
  caps.struct_size = sizeof caps;

  if (reprise_abi_version() != REPRISE_ABI) return 1;
  status = reprise_start(&config);
  if (status != REPRISE_INERT) return 2;
  if (reprise_intern("relu", 4) == 0) return 3;
  if (reprise_python_bind(NULL) != REPRISE_EINVAL) return 7;
  reprise_step(1);
  reprise_op_begin(1, 1, 0, 0, -1, 0);
  reprise_alloc(0x1000, 64, 0, 0, REPRISE_ALLOC, 0);
  reprise_op_end(1);
  if (reprise_capabilities(&caps) != REPRISE_INERT) return 4;
  if (caps.pushed < 4 || strlen(caps.why) == 0) return 5;
  printf("%s\n", caps.why);
  return reprise_stop() == REPRISE_OK ? 0 : 6;
}
