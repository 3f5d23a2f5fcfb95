// One message of the control socket: a packet with a header, a body of at most
// 16 KiB and at most one descriptor. Nothing here waits.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/include/reprise_wire.h"

namespace reprise::profiler {

enum class Sent {
  kYes,
  kLater,   // the queue is full: try again at the next step
  kBroken,  // the connection is gone
};

// A body given as parts, so that texts need not be copied together.
struct BodyPart {
  const void *bytes;
  size_t n;
};

// `fd` -1: none. At most three parts.
Sent SendMessage(int socket, uint16_t type, const BodyPart *parts, int count,
                 int fd);

struct MessageBuffer {
  reprise_msg_header header;
  uint8_t body[REPRISE_MAX_BODY_BYTES];
};

enum class Got {
  kMessage,
  kNothing,  // the queue is empty
  kClosed,
  kMalformed,  // wrong magic, layout or size: this is no collector
};

// Receives one packet. `*fd` is the first descriptor that came with it, or -1;
// further ones are closed. On kMessage header and size have been checked and
// `*fd` belongs to the caller.
Got ReceiveMessage(int socket, MessageBuffer *buffer, int *fd);

}  // namespace reprise::profiler
