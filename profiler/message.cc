#include "profiler/message.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace reprise::profiler {
namespace {

constexpr int kMaxParts = 3;

// Room for a few descriptors, so that surplus ones can be closed; the kernel
// discards what does not fit.
constexpr size_t kMaxFds = 8;

void TakeFds(const msghdr &message, int *first) {
  msghdr *mutable_message = const_cast<msghdr *>(&message);
  for (cmsghdr *c = CMSG_FIRSTHDR(mutable_message); c != nullptr;
       c = CMSG_NXTHDR(mutable_message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      if (*first < 0)
        *first = fd;
      else
        close(fd);
    }
  }
}

}  // namespace

Sent SendMessage(int socket, uint16_t type, const BodyPart *parts, int count,
                 int fd) {
  reprise_msg_header header = {};
  header.magic = REPRISE_WIRE_MAGIC;
  header.type = type;
  header.layout = REPRISE_RING_LAYOUT;
  iovec vectors[1 + kMaxParts] = {{&header, sizeof header}};
  for (int i = 0; i < count; ++i) {
    vectors[1 + i] = {const_cast<void *>(parts[i].bytes), parts[i].n};
    header.size += static_cast<uint32_t>(parts[i].n);
  }

  msghdr message = {};
  message.msg_iov = vectors;
  message.msg_iovlen = 1 + static_cast<size_t>(count);
  alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
      return Sent::kYes;
    if (errno == EINTR) continue;
    // ETOOMANYREFS: the user has too many descriptors in flight.
    const bool later = errno == EAGAIN || errno == EWOULDBLOCK ||
                       errno == ENOBUFS || errno == ENOMEM ||
                       errno == ETOOMANYREFS;
    return later ? Sent::kLater : Sent::kBroken;
  }
}

Got ReceiveMessage(int socket, MessageBuffer *buffer, int *fd) {
  *fd = -1;
  iovec vector = {buffer, sizeof *buffer};
  alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * kMaxFds)];
  msghdr message = {};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;

  ssize_t n;
  bool reset = false;
  for (;;) {
    n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n >= 0) break;
    // If a peer closes while messages of ours are unread, this error precedes
    // its last message, which may be REFUSED. Reading the error clears it.
    if (errno == ECONNRESET && !reset)
      reset = true;
    else if (errno != EINTR)
      break;
  }
  if (n < 0)
    return errno == EAGAIN || errno == EWOULDBLOCK ? Got::kNothing
                                                   : Got::kClosed;
  TakeFds(message, fd);
  if (n == 0 && *fd < 0) return Got::kClosed;

  const reprise_msg_header &header = buffer->header;
  const bool sound = static_cast<size_t>(n) >= sizeof header &&
                     (message.msg_flags & MSG_TRUNC) == 0 &&
                     header.magic == REPRISE_WIRE_MAGIC &&
                     header.layout == REPRISE_RING_LAYOUT &&
                     header.size == static_cast<size_t>(n) - sizeof header;
  if (sound) return Got::kMessage;
  if (*fd >= 0) close(*fd);
  *fd = -1;
  return Got::kMalformed;
}

}  // namespace reprise::profiler
