#include "tests/profiler/collector.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

namespace reprise::profiler::testing {

constexpr int kRecordsPerTurn = 20000;

struct Collector::Peer {
  int socket = -1;
  int ring_file = -1;
  reprise_ring_header* header = nullptr;
  reprise_slot* slots = nullptr;
  uint64_t slot_count = 0, tail = 0;
  size_t mapped_bytes = 0;
  std::string session_id;
  bool greeted = false;

  ~Peer() {
    if (header != nullptr) munmap(header, mapped_bytes);
    if (ring_file >= 0) close(ring_file);
    if (socket >= 0) close(socket);
  }
};

namespace {

template <typename Body>
std::string AsBytes(const Body& body) {
  return std::string(reinterpret_cast<const char*>(&body), sizeof body);
}

template <typename Body>
Body FromBytes(const std::string& bytes) {
  Body body = {};
  EXPECT_GE(bytes.size(), sizeof body);
  memcpy(&body, bytes.data(), std::min(bytes.size(), sizeof body));
  return body;
}

std::string ReadMemfd(int fd, uint64_t bytes) {
  EXPECT_EQ(fcntl(fd, F_GET_SEALS) & kAllSeals, kAllSeals);
  std::string text(bytes, 0);
  EXPECT_EQ(pread(fd, text.data(), bytes, 0), static_cast<ssize_t>(bytes));
  struct stat facts;
  EXPECT_EQ(fstat(fd, &facts), 0);
  EXPECT_EQ(static_cast<uint64_t>(facts.st_size), bytes);
  return text;
}

std::vector<uint32_t> NamesUsedBy(const reprise_slot& record) {
  switch (record.kind) {
    case REPRISE_RECORD_OP_BEGIN:
      return {record.body.op.name, record.body.op.shapes};
    case REPRISE_RECORD_VERIFY:
      return {record.body.verify.first_name};
    case REPRISE_RECORD_PLAN_STATE:
      return {record.body.plan_state.why_name};
    default:
      return {};
  }
}

void SendOn(int socket, const std::string& bytes, const std::vector<int>& fds) {
  iovec vector = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  sendmsg(socket, &message, MSG_NOSIGNAL);
}

}  // namespace

uint64_t Session::Count(uint16_t kind) const {
  uint64_t n = 0;
  for (const reprise_slot& record : records) n += record.kind == kind;
  return n;
}

uint64_t Session::Lost() const {
  uint64_t n = 0;
  for (const reprise_slot& record : records)
    if (record.kind == REPRISE_RECORD_LOSS) n += record.body.loss.count;
  return n;
}

Collector::Collector(std::string path, std::shared_ptr<Shelf> shelf)
    : Collector(std::move(path), std::move(shelf), Options()) {}

Collector::Collector(std::string path, std::shared_ptr<Shelf> shelf,
                     Options options)
    : path_(std::move(path)),
      shelf_(std::move(shelf)),
      options_(std::move(options)),
      drain_(options_.drain),
      receive_(options_.receive) {
  unlink(path_.c_str());
  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  EXPECT_LT(path_.size(), sizeof address.sun_path);
  memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  EXPECT_EQ(
      bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0)
      << path_ << ": " << strerror(errno);
  EXPECT_EQ(listen(listener_, 64), 0);
  thread_ = std::thread([this] { Serve(); });
}

Collector::~Collector() {
  stop_ = true;
  thread_.join();
  close(listener_);
  unlink(path_.c_str());
}

void Collector::Serve() {
  while (!stop_) {
    {
      std::lock_guard lock(peers_mutex_);
      Accept();
      for (size_t i = 0; i < peers_.size();) {
        Peer* peer = peers_[i].get();
        // The socket is read before the ring, and the ring only up to the head
        // of before: so the name of every drained record has arrived.
        const uint64_t mark =
            peer->header == nullptr
                ? 0
                : __atomic_load_n(&peer->header->head, __ATOMIC_ACQUIRE);
        const bool open = (peer->greeted && !receive_) || ReceiveFrom(peer);
        if (drain_) Drain(peer, mark);
        // A dead trainer's ring is drained before its session ends.
        if (open || !drain_ || !IsEmpty(*peer)) {
          ++i;
          continue;
        }
        std::lock_guard shelf_lock(shelf_->mutex);
        if (peer->greeted) ++shelf_->sessions[peer->session_id].closed;
        peers_.erase(peers_.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    pollfd wake = {listener_, POLLIN, 0};
    poll(&wake, 1, 1);
  }
}

void Collector::Accept() {
  for (;;) {
    const int fd =
        accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->socket = fd;
  }
}

bool Collector::ReceiveFrom(Peer* peer) {
  for (;;) {
    std::string packet(sizeof(reprise_msg_header) + REPRISE_MAX_BODY_BYTES, 0);
    iovec vector = {packet.data(), packet.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
    msghdr message = {};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(peer->socket, &message, MSG_CMSG_CLOEXEC);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    int fd = -1;
    if (cmsghdr* c = CMSG_FIRSTHDR(&message)) {
      EXPECT_EQ(c->cmsg_len, CMSG_LEN(sizeof fd)) << "one descriptor at most";
      memcpy(&fd, CMSG_DATA(c), sizeof fd);
    }
    packet.resize(static_cast<size_t>(n));
    const auto header = FromBytes<reprise_msg_header>(packet);
    EXPECT_EQ(header.magic, REPRISE_WIRE_MAGIC);
    EXPECT_EQ(header.layout, REPRISE_RING_LAYOUT);
    EXPECT_EQ(header.size, packet.size() - sizeof header);
    Handle(peer, header.type, packet.substr(sizeof header), fd);
    if (!receive_) return true;
  }
}

void Collector::Handle(Peer* peer, uint16_t type, const std::string& body,
                       int fd) {
  if (type == REPRISE_MSG_HELLO) {
    const auto hello = FromBytes<reprise_msg_hello>(body);
    ASSERT_GE(fd, 0) << "HELLO brings the ring";
    peer->greeted = true;
    peer->session_id = hello.session_id;
    peer->ring_file = fd;
    EXPECT_EQ(fcntl(fd, F_GET_SEALS),
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    struct stat facts;
    ASSERT_EQ(fstat(fd, &facts), 0);
    peer->slot_count = hello.slots;
    peer->mapped_bytes =
        REPRISE_RING_HEADER_BYTES + hello.slots * sizeof(reprise_slot);
    ASSERT_EQ(static_cast<size_t>(facts.st_size), peer->mapped_bytes);
    void* memory = mmap(nullptr, peer->mapped_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED, fd, 0);
    ASSERT_NE(memory, MAP_FAILED);
    peer->header = static_cast<reprise_ring_header*>(memory);
    peer->slots = reinterpret_cast<reprise_slot*>(static_cast<char*>(memory) +
                                                  REPRISE_RING_HEADER_BYTES);
    EXPECT_EQ(peer->header->magic, REPRISE_WIRE_MAGIC);
    EXPECT_EQ(peer->header->layout, REPRISE_RING_LAYOUT);
    EXPECT_EQ(peer->header->slots, hello.slots);
    EXPECT_EQ(peer->header->header_bytes, REPRISE_RING_HEADER_BYTES);
    peer->tail = __atomic_load_n(&peer->header->tail, __ATOMIC_ACQUIRE);
    {
      std::lock_guard lock(shelf_->mutex);
      Session& session = shelf_->sessions[peer->session_id];
      session.hello = hello;
      session.labels = body.substr(sizeof hello);
      EXPECT_EQ(session.labels.size(), hello.labels_bytes);
      ++session.hellos;
    }
    if (!options_.garbage.empty())
      return SendOn(peer->socket, options_.garbage, {});
    if (options_.silent) return;
    if (!options_.refuse.empty())
      return SendOn(peer->socket, Message(REPRISE_MSG_REFUSED, options_.refuse),
                    {});
    reprise_msg_welcome welcome = {};
    welcome.ring_layout = REPRISE_RING_LAYOUT;
    strcpy(welcome.version, "test");
    return SendOn(peer->socket, Message(REPRISE_MSG_WELCOME, AsBytes(welcome)),
                  {});
  }

  std::lock_guard lock(shelf_->mutex);
  Session& session = shelf_->sessions[peer->session_id];
  switch (type) {
    case REPRISE_MSG_DEFS:
      for (size_t at = 0; at + 8 <= body.size();) {
        uint32_t id, n;
        memcpy(&id, body.data() + at, 4);
        memcpy(&n, body.data() + at + 4, 4);
        ASSERT_LE(at + 8 + n, body.size());
        session.names[id] = body.substr(at + 8, n);
        at += 8 + (n + 3) / 4 * 4;
      }
      break;
    case REPRISE_MSG_CAPS:
      session.capabilities = body;
      break;
    case REPRISE_MSG_BYE:
      session.byes.push_back(FromBytes<reprise_msg_bye>(body));
      break;
    case REPRISE_MSG_GRAPH: {
      reprise_msg_graph graph = {};
      ASSERT_GE(fd, 0);
      ASSERT_GE(body.size(), size_t{REPRISE_MSG_GRAPH_LEAST});
      memcpy(&graph, body.data(), REPRISE_MSG_GRAPH_LEAST);
      const size_t texts = graph.budget_bytes + graph.capabilities_bytes;
      ASSERT_LE(texts, body.size());
      const size_t fixed = body.size() - texts;
      ASSERT_TRUE(fixed == REPRISE_MSG_GRAPH_LEAST ||
                  fixed == REPRISE_MSG_GRAPH_DEVICE || fixed == sizeof graph);
      memcpy(&graph, body.data(), fixed);
      GraphMessage received;
      received.id = graph.graph_id;
      received.json = ReadMemfd(fd, graph.bytes);
      received.budget = body.data() + fixed;
      received.capabilities = body.data() + fixed + graph.budget_bytes;
      received.static_bytes = graph.static_bytes;
      received.device_bytes = graph.device_bytes;
      received.device_free_bytes = graph.device_free_bytes;
      received.reserve_bytes = graph.reserve_bytes;
      received.request_id = graph.request_id;
      received.fixed_bytes = fixed;
      session.graphs.push_back(received);
      break;
    }
    case REPRISE_MSG_SNAPSHOT:
      ASSERT_GE(fd, 0);
      session.snapshots.push_back(
          ReadMemfd(fd, FromBytes<reprise_msg_bulk>(body).bytes));
      break;
    default:
      ADD_FAILURE() << "unexpected message " << type;
  }
  if (fd >= 0) close(fd);
}

bool Collector::IsEmpty(const Peer& peer) {
  if (peer.header == nullptr) return true;
  return __atomic_load_n(&peer.slots[peer.tail % peer.slot_count].sequence,
                         __ATOMIC_ACQUIRE) != peer.tail + 1;
}

void Collector::Drain(Peer* peer, uint64_t mark) {
  if (peer->header == nullptr) return;
  std::lock_guard lock(shelf_->mutex);
  Session& session = shelf_->sessions[peer->session_id];
  // At most this many records a turn: one busy ring must not hold up the
  // others.
  for (int i = 0; i < kRecordsPerTurn && peer->tail < mark; ++i) {
    reprise_slot* slot = &peer->slots[peer->tail % peer->slot_count];
    if (__atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE) != peer->tail + 1)
      return;
    if (options_.keep_records) session.records.push_back(*slot);
    for (uint32_t name : NamesUsedBy(*slot))
      if (name != 0 && session.names.count(name) == 0)
        session.names_came_first = false;
    __atomic_store_n(&peer->header->tail, peer->tail + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->sequence, peer->tail + peer->slot_count,
                     __ATOMIC_RELEASE);
    ++peer->tail;
  }
}

void Collector::Send(uint16_t type, const std::string& body,
                     std::vector<int> fds) {
  std::lock_guard lock(peers_mutex_);
  for (const auto& peer : peers_)
    SendOn(peer->socket, Message(type, body), fds);
}

void Collector::SendPacket(const std::string& bytes) {
  std::lock_guard lock(peers_mutex_);
  for (const auto& peer : peers_) SendOn(peer->socket, bytes, {});
}

void Collector::CloseConnections() {
  std::lock_guard lock(peers_mutex_);
  peers_.clear();
}

bool Collector::WaitFor(const std::function<bool(const Shelf&)>& done) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    {
      std::lock_guard lock(shelf_->mutex);
      if (done(*shelf_)) return true;
    }
    poll(nullptr, 0, 1);
  }
  return false;
}

bool Collector::WaitForSession(
    const std::function<bool(const Session&)>& done) {
  return WaitFor([&](const Shelf& shelf) {
    return shelf.sessions.size() == 1 && done(shelf.sessions.begin()->second);
  });
}

Session Collector::OnlySession() {
  std::lock_guard lock(shelf_->mutex);
  EXPECT_EQ(shelf_->sessions.size(), 1u);
  return shelf_->sessions.empty() ? Session()
                                  : shelf_->sessions.begin()->second;
}

std::string Message(uint16_t type, const std::string& body) {
  reprise_msg_header header = {};
  header.magic = REPRISE_WIRE_MAGIC;
  header.type = type;
  header.layout = REPRISE_RING_LAYOUT;
  header.size = static_cast<uint32_t>(body.size());
  return AsBytes(header) + body;
}

std::string PlanBody(uint64_t graph_id, uint64_t plan_id, uint64_t bytes,
                     uint64_t peak, uint64_t ns) {
  reprise_msg_plan plan = {};
  plan.graph_id = graph_id;
  plan.plan_id = plan_id;
  plan.bytes = bytes;
  plan.predicted_peak = peak;
  plan.predicted_ns = ns;
  return AsBytes(plan);
}

std::string PlanStatusBody(uint64_t graph_id, uint32_t status,
                           uint64_t smallest, const std::string& text) {
  reprise_msg_plan_status body = {};
  body.graph_id = graph_id;
  body.smallest_budget = smallest;
  body.status = status;
  body.text_bytes = static_cast<uint32_t>(text.size());
  return AsBytes(body) + text;
}

std::string CommandBody(uint32_t command, uint32_t kinds, uint64_t steps) {
  reprise_msg_command body = {};
  body.command = command;
  body.kinds = kinds;
  body.steps = steps;
  return AsBytes(body);
}

int MemfdOf(const std::string& text, int seals) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(write(fd, text.data(), text.size()),
            static_cast<ssize_t>(text.size()));
  if (seals != 0) {
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  }
  return fd;
}

}  // namespace reprise::profiler::testing
