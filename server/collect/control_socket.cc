// SPDX-License-Identifier: Apache-2.0
#include "server/collect/control_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"
#include "server/core/paths.h"

namespace reprise::server {

namespace {

constexpr int kBacklog = 64;
// Limit for descriptors received at once. One is legal; surplus ones are
// received so that they can be closed.
constexpr int kMaxFds = 16;

StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty()) return InvalidArgument("agent socket: the path is empty");
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument(StrCat(path, ": a socket path may have ",
                                  sizeof(address.sun_path) - 1,
                                  " bytes, this one has ", path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return OkStatus();
  if (!S_ISSOCK(status.st_mode)) {
    return FailedPrecondition(
        StrCat(path, ": is in the way and not a socket; remove it"));
  }
  const Fd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (probe.valid() &&
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) == 0) {
    return FailedPrecondition(
        StrCat(path, ": another daemon answers here; stop it first"));
  }
  if (unlink(path.c_str()) != 0) {
    return PermissionDenied(
        StrCat(path, ": stale socket cannot be removed: ", strerror(errno)));
  }
  return OkStatus();
}

}  // namespace

StatusOr<Fd> ListenForAgents(const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  RETURN_IF_ERROR(EnsureOwnFolder(FolderOf(path)));
  RETURN_IF_ERROR(RemoveStale(path, address));
  Fd listener(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) {
    return ResourceExhausted(StrCat("agent socket: ", strerror(errno)));
  }
  // Linux takes the file's mode from the socket, so there is never a moment
  // with a wider mode, and the umask, which belongs to the whole process, stays
  // as it is.
  if (fchmod(listener.get(), 0600) != 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address),
           sizeof(address)) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return PermissionDenied(StrCat(path, ": cannot listen: ", strerror(errno)));
  }
  return listener;
}

StatusOr<Peer> PeerOf(const Fd& socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) !=
      0) {
    return Internal(StrCat("SO_PEERCRED: ", strerror(errno)));
  }
  return Peer{.uid = credentials.uid, .pid = credentials.pid};
}

StatusOr<Received> Receive(const Fd& socket, Message& message) {
  reprise_msg_header header{};
  static thread_local char body[REPRISE_MAX_BODY_BYTES];
  iovec parts[2] = {{&header, sizeof(header)}, {body, sizeof(body)}};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr packet{};
  packet.msg_iov = parts;
  packet.msg_iovlen = 2;
  packet.msg_control = control;

  ssize_t n = -1;
  // If the peer closed with unread messages, one ECONNRESET precedes what it
  // had sent; those messages must still be read.
  for (int resets = 0; resets < 2;) {
    packet.msg_controllen = sizeof(control);
    n = recvmsg(socket.get(), &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n >= 0) break;
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return Received::kNothing;
    if (errno != ECONNRESET) return Received::kClosed;
    ++resets;
  }
  message.fds.clear();
  if (n >= 0) {
    for (cmsghdr* c = CMSG_FIRSTHDR(&packet); c != nullptr;
         c = CMSG_NXTHDR(&packet, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
        message.fds.emplace_back(fd);
      }
    }
  }
  if (n <= 0) return Received::kClosed;

  const auto size = static_cast<size_t>(n);
  if ((packet.msg_flags & MSG_TRUNC) != 0) {
    return InvalidArgument(StrCat("message: larger than the ",
                                  REPRISE_MAX_BODY_BYTES,
                                  " bytes a body may have"));
  }
  if (size < sizeof(header) || header.magic != REPRISE_WIRE_MAGIC) {
    return InvalidArgument("message: does not start with the magic");
  }
  if (header.layout != REPRISE_RING_LAYOUT) {
    return InvalidArgument(StrCat("message: layout ", header.layout,
                                  ", this daemon speaks ",
                                  REPRISE_RING_LAYOUT));
  }
  if (header.size != size - sizeof(header)) {
    return InvalidArgument(StrCat("message: announced ", header.size,
                                  " bytes, came with ", size - sizeof(header)));
  }
  message.type = header.type;
  message.request = header.request;
  message.body.assign(body, header.size);
  return Received::kMessage;
}

Status Send(const Fd& socket, uint16_t type, uint32_t request,
            std::string_view body, int fd) {
  reprise_msg_header header{.magic = REPRISE_WIRE_MAGIC,
                            .type = type,
                            .layout = REPRISE_RING_LAYOUT,
                            .size = static_cast<uint32_t>(body.size()),
                            .request = request};
  iovec parts[2] = {{&header, sizeof(header)},
                    {const_cast<char*>(body.data()), body.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr packet{};
  packet.msg_iov = parts;
  packet.msg_iovlen = 2;
  if (fd >= 0) {
    packet.msg_control = control;
    packet.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&packet);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof(fd));
  }
  while (sendmsg(socket.get(), &packet, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS) {
      return Unavailable("agent: its queue is full");
    }
    return {Code::kAborted, StrCat("agent: ", strerror(errno))};
  }
  return OkStatus();
}

}  // namespace reprise::server
