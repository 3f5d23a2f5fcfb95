#include "profiler/connection.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "profiler/clock.h"
#include "profiler/sentence.h"

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
  // One that never came as far as WELCOME counts as a failed attempt.
  if (connection.link == Link::kGreeting) BackOff(&connection);
  if (connection.delay_ns < kFirstDelay) connection.delay_ns = kFirstDelay;
  connection.socket.Close();
  connection.link = Link::kNone;
  snprintf(connection.why, sizeof connection.why, "%s", why);
  connection.next_attempt_ns = connection.attempted_ns + connection.delay_ns;
  if (connection.next_attempt_ns < now_ns) connection.next_attempt_ns = now_ns;
}

// A folder that somebody else made under a shared /tmp is a trap. The system's
// folder and a path named by the user are trusted as they are.
// Sets errno when it returns false.
bool FolderIsTrusted(const Connection &connection, int candidate) {
  if (connection.candidate_count == 1 || candidate == 0) return true;
  char folder[kSocketPathBytes];
  memcpy(folder, connection.candidates[candidate], sizeof folder);
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
  // Non-blocking: a full backlog is EAGAIN at once.
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
      BeginDeviceWindow(&agent->tracer);
      return SetWindow(agent, KnownKinds(command.kinds), command.steps);
    case REPRISE_COMMAND_WINDOW_END:
      return SetWindow(agent, 0, 0);
    case REPRISE_COMMAND_PAUSE:
      return PauseWindow(agent, true);
    case REPRISE_COMMAND_RESUME:
      return PauseWindow(agent, false);
    default:  // FLUSH: the turn that read it has published everything
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

// False: the peer does not keep to the protocol. Consumes `fd`.
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
  return true;  // an unknown type is a newer collector's
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

// False: stop for this turn.
bool SendCapabilities(Agent *agent, Sent *sent) {
  if (!agent->outgoing.capabilities) return true;
  const BodyPart part = {
      agent->outbox,
      DescribeCapabilities(agent, reinterpret_cast<char *>(agent->outbox),
                           sizeof agent->outbox)};
  *sent = SendMessage(agent->connection.socket.fd(), REPRISE_MSG_CAPS, &part, 1,
                      -1);
  agent->outgoing.capabilities = *sent != Sent::kYes;
  return *sent == Sent::kYes;
}

bool SendNewNames(Agent *agent, Sent *sent) {
  Outgoing &outgoing = agent->outgoing;
  __atomic_store_n(&outgoing.names_tried, NameCount(&agent->names),
                   __ATOMIC_RELAXED);
  while (outgoing.names_sent < NameCount(&agent->names)) {
    uint32_t last;
    const size_t n = PackNames(&agent->names, outgoing.names_sent,
                               agent->outbox, sizeof agent->outbox, &last);
    const BodyPart part = {agent->outbox, n};
    *sent = SendMessage(agent->connection.socket.fd(), REPRISE_MSG_DEFS, &part,
                        1, -1);
    if (*sent != Sent::kYes) return false;
    outgoing.names_sent = last;
  }
  return true;
}

bool SendGraphs(Agent *agent, Sent *sent) {
  for (Graph &graph : agent->graphs.entries) {
    if (graph.id == 0 || !graph.unsent) continue;
    const reprise_msg_graph &message = graph.message;
    const BodyPart parts[] = {
        {&message, sizeof message},
        {graph.texts, message.budget_bytes + message.capabilities_bytes}};
    *sent = SendMessage(agent->connection.socket.fd(), REPRISE_MSG_GRAPH, parts,
                        2, graph.json.fd());
    if (*sent != Sent::kYes) return false;
    MarkSent(&agent->graphs, &graph);
  }
  return true;
}

bool SendSnapshot(Agent *agent, Sent *sent) {
  Outgoing &outgoing = agent->outgoing;
  if (!outgoing.snapshot.open()) return true;
  const reprise_msg_bulk message = {outgoing.snapshot_bytes};
  const BodyPart part = {&message, sizeof message};
  *sent = SendMessage(agent->connection.socket.fd(), REPRISE_MSG_SNAPSHOT,
                      &part, 1, outgoing.snapshot.fd());
  if (*sent == Sent::kYes) outgoing.snapshot.Close();
  return *sent == Sent::kYes;
}

void SendWaiting(Agent *agent, uint64_t now_ns) {
  Sent sent = Sent::kYes;
  if (SendCapabilities(agent, &sent) && SendNewNames(agent, &sent) &&
      SendGraphs(agent, &sent))
    SendSnapshot(agent, &sent);
  if (sent == Sent::kBroken)
    Disconnect(agent, "the collector closed the connection", now_ns);
}

}  // namespace

bool Connect(Agent *agent, uint64_t now_ns) {
  Connection &connection = agent->connection;
  connection.attempted_ns = now_ns;
  connection.why[0] = 0;
  for (int i = 0; i < connection.candidate_count; ++i) {
    const char *path = connection.candidates[i];
    const int fd = FolderIsTrusted(connection, i) ? ConnectTo(path) : -1;
    if (fd < 0) {
      // A socket that is there and does not work says more than a missing one.
      if (errno != ENOENT || connection.why[0] == 0)
        snprintf(connection.why, sizeof connection.why,
                 "no collector at %.120s: %s", path, strerror(errno));
      continue;
    }
    connection.socket.Hold(fd);
    agent->outgoing.names_sent = 0;
    // Names go right behind HELLO: the ring may be full of records that use
    // them, and nothing makes the collector wait for our next turn.
    Sent names = Sent::kYes;
    if (SendHello(agent) &&
        (SendNewNames(agent, &names) || names == Sent::kLater)) {
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
  if (connection.link == Link::kGreeting &&
      now_ns - connection.connected_ns > kGreetingTimeout)
    Disconnect(agent, "the collector does not answer", now_ns);
  if (connection.link == Link::kReady) SendWaiting(agent, now_ns);
}

void SendNames(Agent *agent) {
  Sent sent = Sent::kYes;
  if (agent->connection.link == Link::kReady) {
    // A broken connection is noticed and replaced by the next step.
    SendNewNames(agent, &sent);
  } else {
    __atomic_store_n(&agent->outgoing.names_tried, NameCount(&agent->names),
                     __ATOMIC_RELAXED);
  }
}

void SendBye(Agent *agent) {
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr || agent->connection.link != Link::kReady) return;
  const reprise_msg_bye bye = {PushedRecords(ring), DroppedRecords(ring)};
  const BodyPart part = {&bye, sizeof bye};
  SendMessage(agent->connection.socket.fd(), REPRISE_MSG_BYE, &part, 1, -1);
}

size_t DescribeCapabilities(const Agent *agent, char *text, size_t capacity) {
  const TracerFacts &tracer = agent->tracer;
  const Window &window = agent->window;
  const int n = snprintf(
      text, capacity,
      "ring=%u\n"
      "clock=host\n"
      "cupti=%u %s\n"
      "driver=%u\n"
      "window=%s\n",
      agent->identity.hello.slots, tracer.level, tracer.why,
      tracer.driver_version,
      window.paused ? "paused" : (window.kinds != 0 ? "open" : "closed"));
  return n < 0 ? 0 : static_cast<size_t>(n);
}

}  // namespace reprise::profiler
