#include "profiler/connection.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "profiler/clock.h"
#include "profiler/message.h"

namespace reprise::profiler {
namespace {

constexpr uint64_t kFirstDelay = kSecond;
constexpr uint64_t kLongestDelay = 8 * kSecond;
constexpr uint64_t kGreetingTimeout = 5 * kSecond;
constexpr int kMessagesPerTurn = 32;

void BackOff(Connection *connection) {
  const uint64_t next = connection->delay_ns * 2;
  connection->delay_ns = next < kFirstDelay     ? kFirstDelay
                         : next > kLongestDelay ? kLongestDelay
                                                : next;
}

void Disconnect(Agent *agent, const char *why, uint64_t now_ns) {
  Connection &connection = agent->connection;
  // A connection that never got WELCOME counts as a failed attempt.
  if (connection.link == Link::kGreeting) BackOff(&connection);
  if (connection.delay_ns < kFirstDelay) connection.delay_ns = kFirstDelay;
  connection.socket.Close();
  connection.link = Link::kNone;
  snprintf(connection.why, sizeof connection.why, "%s", why);
  connection.next_attempt_ns = connection.attempted_ns + connection.delay_ns;
  if (connection.next_attempt_ns < now_ns) connection.next_attempt_ns = now_ns;
}

// Returns whether the folder of a socket can be trusted: in a shared /tmp
// another user could have created it. The system's folder and a path that the
// user named are always trusted. Sets errno when it returns false.
bool FolderIsTrusted(const RepriseSockets &sockets, int place) {
  if (sockets.count == 1 || place == 0) return true;
  char folder[kRepriseSocketBytes];
  memcpy(folder, sockets.path[place], sizeof folder);
  char *slash = strrchr(folder, '/');
  if (slash != nullptr) *slash = 0;
  struct stat facts;
  if (lstat(folder, &facts) != 0) return false;
  errno = EPERM;
  return S_ISDIR(facts.st_mode) && facts.st_uid == geteuid();
}

int ConnectTo(const char *path) {
  const int fd =
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path, strlen(path) + 1);
  // Non-blocking: with a full backlog, connect fails at once with EAGAIN.
  if (connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0)
    return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

bool SendHello(Agent *agent) {
  const Identity &identity = agent->identity;
  const BodyPart parts[] = {{&identity.hello, sizeof identity.hello},
                            {identity.labels, identity.hello.labels_bytes}};
  return SendMessage(agent->connection.socket.fd(), REPRISE_MSG_HELLO, parts, 2,
                     agent->ring_file.fd()) == Sent::kYes;
}

void HandleWelcome(Agent *agent) {
  Connection &connection = agent->connection;
  connection.link = Link::kReady;
  connection.was_ready = true;
  connection.delay_ns = 0;
  connection.why[0] = 0;
  agent->outgoing.capabilities = true;
  ResendNewest(&agent->graphs);
}

void HandleCommand(Agent *agent, const reprise_msg_command &command) {
  switch (command.command) {
    case REPRISE_COMMAND_WINDOW_BEGIN:
      SetWindow(agent, KnownKinds(command.kinds), command.steps);
      return;
    case REPRISE_COMMAND_WINDOW_END:
      SetWindow(agent, 0, 0);
      return;
    case REPRISE_COMMAND_PAUSE:
      return PauseWindow(agent, true);
    case REPRISE_COMMAND_RESUME:
      return PauseWindow(agent, false);
    default:  // FLUSH: this turn has already published everything
      return;
  }
}

template <typename Body>
bool ReadBody(const MessageBuffer &message, Body *body) {
  // A newer collector may append fields.
  if (message.header.size < sizeof *body) return false;
  memcpy(body, message.body, sizeof *body);
  return true;
}

// Handles one message. Returns false if the peer violates the protocol. Takes
// ownership of `fd`.
bool Dispatch(Agent *agent, const MessageBuffer &message, int fd,
              uint64_t now_ns) {
  Connection &connection = agent->connection;
  const uint16_t type = message.header.type;
  if (type == REPRISE_MSG_PLAN) {
    reprise_msg_plan plan;
    const bool sound =
        fd >= 0 && connection.link == Link::kReady && ReadBody(message, &plan);
    if (sound)
      HandlePlan(&agent->graphs, plan, fd);
    else if (fd >= 0)
      close(fd);
    return sound;
  }
  if (fd >= 0) close(fd);

  if (type == REPRISE_MSG_WELCOME) {
    reprise_msg_welcome welcome;
    if (connection.link != Link::kGreeting || !ReadBody(message, &welcome) ||
        welcome.ring_layout != REPRISE_RING_LAYOUT)
      return false;
    HandleWelcome(agent);
    return true;
  }
  if (type == REPRISE_MSG_REFUSED) {
    char why[sizeof connection.why];
    CopySentence(message.body, message.header.size, why, sizeof why);
    Disconnect(agent, why[0] ? why : "the collector refused this session",
               now_ns);
    connection.refused = true;
    return true;
  }
  if (connection.link != Link::kReady) return false;
  if (type == REPRISE_MSG_PLAN_STATUS) {
    reprise_msg_plan_status status;
    if (!ReadBody(message, &status) ||
        status.text_bytes > message.header.size - sizeof status)
      return false;
    HandlePlanStatus(&agent->graphs, status, message.body + sizeof status,
                     status.text_bytes);
  } else if (type == REPRISE_MSG_COMMAND) {
    reprise_msg_command command;
    if (!ReadBody(message, &command)) return false;
    HandleCommand(agent, command);
  }
  return true;  // an unknown type comes from a newer collector
}

void Receive(Agent *agent, uint64_t now_ns) {
  Connection &connection = agent->connection;
  for (int i = 0; i < kMessagesPerTurn && connection.socket.open(); ++i) {
    int fd;
    switch (ReceiveMessage(connection.socket.fd(), &agent->inbox, &fd)) {
      case Got::kMessage:
        if (!Dispatch(agent, agent->inbox, fd, now_ns))
          Disconnect(agent, "the collector sent a message that makes no sense",
                     now_ns);
        break;
      case Got::kNothing:
        return;
      case Got::kClosed:
        return Disconnect(agent, "the collector closed the connection", now_ns);
      case Got::kMalformed:
        return Disconnect(agent, "what answers at the socket is no collector",
                          now_ns);
    }
  }
}

}  // namespace

bool Connect(Agent *agent, uint64_t now_ns) {
  Connection &connection = agent->connection;
  connection.attempted_ns = now_ns;
  connection.why[0] = 0;
  for (int i = 0; i < connection.sockets.count; ++i) {
    const char *path = connection.sockets.path[i];
    const int fd =
        FolderIsTrusted(connection.sockets, i) ? ConnectTo(path) : -1;
    if (fd < 0) {
      // An error of an existing socket is more informative than a missing one.
      if (errno != ENOENT || connection.why[0] == 0)
        snprintf(connection.why, sizeof connection.why,
                 "no collector at %.120s: %s", path, strerror(errno));
      continue;
    }
    connection.socket.Hold(fd);
    agent->outgoing.names_sent = 0;
    // Names must follow HELLO directly: the ring may be full of records that
    // use them, and the collector does not wait for our next turn.
    if (SendHello(agent) && SendNames(agent)) {
      connection.link = Link::kGreeting;
      connection.connected_ns = now_ns;
      snprintf(connection.why, sizeof connection.why,
               "the collector at %.120s has not answered yet", path);
      return true;
    }
    connection.socket.Close();
    snprintf(connection.why, sizeof connection.why,
             "the collector at %.120s closed the connection", path);
  }
  BackOff(&connection);
  connection.next_attempt_ns = now_ns + connection.delay_ns;
  return false;
}

void ServiceConnection(Agent *agent, uint64_t now_ns) {
  Connection &connection = agent->connection;
  if (connection.refused) return;
  if (connection.link == Link::kNone && now_ns >= connection.next_attempt_ns)
    Connect(agent, now_ns);
  Receive(agent, now_ns);
  // The time of the turn may be from before the connection was made.
  if (connection.link == Link::kGreeting &&
      now_ns > connection.connected_ns + kGreetingTimeout)
    Disconnect(agent, "the collector does not answer", now_ns);
  if (connection.link == Link::kReady && !SendWaiting(agent))
    Disconnect(agent, "the collector closed the connection", now_ns);
}

}  // namespace reprise::profiler
