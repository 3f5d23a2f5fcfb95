// Messages of the control socket: a packet with a header, a body of at most 16
// KiB and at most one descriptor. Nothing here blocks.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/include/reprise_wire.h"

namespace reprise::profiler {

enum class Sent {
  kYes,
  kLater,   // the queue is full: retry at the next step
  kBroken,  // the connection is gone
};

// A body in parts, so that texts need not be copied together first.
struct BodyPart {
  const void *bytes;
  size_t n;
};

// Sends one message of at most three parts. `fd` -1: no descriptor.
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
  kMalformed,  // wrong magic, layout or size: not a collector
};

// Receives one packet. `*fd` is the first descriptor that came with it, or -1;
// further ones are closed. On kMessage the header and size have been checked,
// and the caller owns `*fd`.
Got ReceiveMessage(int socket, MessageBuffer *buffer, int *fd);

// Makes text from outside safe to print: one line, no partial UTF-8 sequence,
// always terminated.

inline void CopySentence(const void *bytes, size_t n, char *text,
                         size_t capacity) {
  const uint8_t *from = static_cast<const uint8_t *>(bytes);
  size_t length = n < capacity ? n : capacity - 1;
  if (length < n)
    while (length > 0 && (from[length] & 0xc0) == 0x80) --length;
  size_t used = 0;
  for (size_t i = 0; i < length && from[i] != 0; ++i)
    text[used++] =
        from[i] < 0x20 || from[i] == 0x7f ? ' ' : static_cast<char>(from[i]);
  text[used] = 0;
}

}  // namespace reprise::profiler
