// SPDX-License-Identifier: Apache-2.0
#include "tests/collect/raw_agent.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "formats/convert/digest.h"
#include "profiler/include/reprise_agent.h"
#include "server/collect/process.h"

namespace reprise::server {

namespace {

uint64_t Load(uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
void Store(uint64_t* p, uint64_t value) {
  __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

int64_t NowNs(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

int TestMemfd(std::string_view content, int seals) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  while (!content.empty()) {
    const ssize_t n = write(fd, content.data(), content.size());
    if (n <= 0) return -1;
    content.remove_prefix(static_cast<size_t>(n));
  }
  if (fcntl(fd, F_ADD_SEALS, seals) != 0) return -1;
  return fd;
}

std::string NewUuid() {
  std::random_device random;
  char text[40];
  std::snprintf(text, sizeof(text), "%08x-%04x-7%03x-a%03x-%08x%04x", random(),
                random() & 0xffff, random() & 0xfff, random() & 0xfff, random(),
                random() & 0xffff);
  return text;
}

reprise_slot AllocRecord(uint64_t address, int64_t bytes) {
  reprise_slot record{};
  record.kind = REPRISE_RECORD_ALLOC;
  record.thread = 1;
  record.ts_ns = static_cast<uint64_t>(NowNs(CLOCK_MONOTONIC));
  record.body.alloc.address = address;
  record.body.alloc.bytes = bytes;
  return record;
}

RawAgent::RawAgent(uint32_t slots) : slots_(slots) {
  bytes_ = REPRISE_RING_HEADER_BYTES + size_t{slots} * REPRISE_SLOT_BYTES;
  ring_fd_ = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (ring_fd_ < 0 || ftruncate(ring_fd_, static_cast<off_t>(bytes_)) != 0 ||
      fcntl(ring_fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
          0) {
    std::abort();
  }
  memory_ = static_cast<uint8_t*>(
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd_, 0));
  *header() = {};
  header()->magic = REPRISE_WIRE_MAGIC;
  header()->layout = REPRISE_RING_LAYOUT;
  header()->slots = slots;
  header()->header_bytes = REPRISE_RING_HEADER_BYTES;
  for (uint64_t i = 0; i < slots; ++i) slot(i)->sequence = i;

  hello.abi = REPRISE_ABI;
  hello.ring_layout = REPRISE_RING_LAYOUT;
  hello.pid = static_cast<uint32_t>(getpid());
  hello.world = 1;
  hello.pid_start_ticks = StartTicksOf(getpid());
  hello.monotonic_ns = NowNs(CLOCK_MONOTONIC);
  hello.realtime_ns = NowNs(CLOCK_REALTIME);
  hello.slots = slots;
  const std::string uuid = NewUuid();
  std::snprintf(hello.session_id, sizeof(hello.session_id), "%s", uuid.c_str());
  std::snprintf(hello.run_id, sizeof(hello.run_id), "run-%s", uuid.c_str());
  std::snprintf(hello.boot_id, sizeof(hello.boot_id), "%s",
                CurrentBootId().c_str());
  std::snprintf(hello.host, sizeof(hello.host), "testhost");
}

RawAgent::~RawAgent() {
  Hang();
  munmap(memory_, bytes_);
  close(ring_fd_);
}

reprise_ring_header* RawAgent::header() const {
  return reinterpret_cast<reprise_ring_header*>(memory_);
}

reprise_slot* RawAgent::slot(uint64_t position) const {
  return reinterpret_cast<reprise_slot*>(memory_ + REPRISE_RING_HEADER_BYTES) +
         position % slots_;
}

// ---- Socket ----

bool RawAgent::Dial(const std::string& path) {
  Hang();
  socket_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", path.c_str());
  return connect(socket_, reinterpret_cast<sockaddr*>(&address),
                 sizeof(address)) == 0;
}

bool RawAgent::Connect(const std::string& path) {
  if (!Dial(path)) return false;
  hello.labels_bytes = static_cast<uint32_t>(labels.size());
  std::string body(reinterpret_cast<const char*>(&hello), sizeof(hello));
  if (!Send(REPRISE_MSG_HELLO, body + labels, {ring_fd_})) return false;
  const std::optional<Reply> reply = Receive();
  if (reply && reply->type == REPRISE_MSG_REFUSED) refusal_ = reply->body;
  return reply && reply->type == REPRISE_MSG_WELCOME;
}

void RawAgent::Hang() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

bool RawAgent::Send(uint16_t type, std::string_view body,
                    const std::vector<int>& fds) {
  reprise_msg_header head{};
  head.magic = REPRISE_WIRE_MAGIC;
  head.type = type;
  head.layout = REPRISE_RING_LAYOUT;
  head.size = static_cast<uint32_t>(body.size());
  std::string packet(reinterpret_cast<const char*>(&head), sizeof(head));
  return SendBytes(packet.append(body), fds);
}

bool RawAgent::SendBytes(std::string_view packet, const std::vector<int>& fds) {
  iovec part{const_cast<char*>(packet.data()), packet.size()};
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(socket_, &message, MSG_NOSIGNAL) ==
         static_cast<ssize_t>(packet.size());
}

bool RawAgent::SendName(uint32_t id, std::string_view text) {
  const uint32_t words[2] = {id, static_cast<uint32_t>(text.size())};
  std::string body(reinterpret_cast<const char*>(words), sizeof(words));
  body += text;
  body.resize((body.size() + 3) & ~size_t{3});
  return Send(REPRISE_MSG_DEFS, body);
}

bool RawAgent::SendBye() {
  const reprise_msg_bye bye{Load(&header()->head), Load(&header()->dropped)};
  return Send(REPRISE_MSG_BYE,
              {reinterpret_cast<const char*>(&bye), sizeof(bye)});
}

bool RawAgent::SendGraph(std::string_view json, const std::string& budget,
                         const std::string& capabilities, uint64_t request_id,
                         uint64_t reserve_bytes) {
  reprise_msg_graph raw{};
  raw.request_id = request_id;
  raw.reserve_bytes = reserve_bytes;
  raw.graph_id = formats::IdOf(json);
  raw.bytes = json.size();
  raw.budget_bytes = static_cast<uint32_t>(budget.size() + 1);
  raw.capabilities_bytes = static_cast<uint32_t>(capabilities.size() + 1);
  std::string body(reinterpret_cast<const char*>(&raw), sizeof(raw));
  body.append(budget.c_str(), budget.size() + 1);
  body.append(capabilities.c_str(), capabilities.size() + 1);
  const int fd = TestMemfd(json, kAllSeals);
  const bool sent = Send(REPRISE_MSG_GRAPH, body, {fd});
  close(fd);
  return sent;
}

std::optional<RawAgent::Reply> RawAgent::Receive(int timeout_ms) {
  pollfd wait{socket_, POLLIN, 0};
  if (poll(&wait, 1, timeout_ms) <= 0) return std::nullopt;
  reprise_msg_header head{};
  std::vector<char> body(REPRISE_MAX_BODY_BYTES);
  iovec parts[2] = {{&head, sizeof(head)}, {body.data(), body.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  Reply reply;
  ssize_t n = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
  if (n < 0) n = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
  if (n <= 0) return reply;
  reply.type = head.type;
  reply.body.assign(body.data(), static_cast<size_t>(n) - sizeof(head));
  if (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    reply.seals = fcntl(fd, F_GET_SEALS);
    struct stat status {};
    fstat(fd, &status);
    reply.file.resize(static_cast<size_t>(status.st_size));
    (void)!pread(fd, reply.file.data(), reply.file.size(), 0);
    close(fd);
  }
  return reply;
}

std::optional<RawAgent::Reply> RawAgent::ReceiveType(uint16_t type) {
  while (true) {
    std::optional<Reply> reply = Receive();
    if (!reply || reply->type == type || reply->type == 0) return reply;
  }
}

// ---- Ring ----

uint64_t RawAgent::Reserve() {
  uint64_t head = Load(&header()->head);
  while (true) {
    if (Load(&slot(head)->sequence) != head) {
      const uint64_t now = Load(&header()->head);
      if (now == head) return UINT64_MAX;
      head = now;
      continue;
    }
    if (__atomic_compare_exchange_n(&header()->head, &head, head + 1, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      return head;
    }
  }
}

bool RawAgent::Push(reprise_slot record) {
  const uint64_t position = Reserve();
  if (position == UINT64_MAX) {
    __atomic_add_fetch(&header()->dropped, 1, __ATOMIC_RELAXED);
    return false;
  }
  reprise_slot* target = slot(position);
  std::memcpy(reinterpret_cast<char*>(target) + sizeof(uint64_t),
              reinterpret_cast<const char*>(&record) + sizeof(uint64_t),
              sizeof(record) - sizeof(uint64_t));
  Store(&target->sequence, position + 1);
  return true;
}

bool RawAgent::PushAlloc(uint64_t address, int64_t bytes) {
  return Push(AllocRecord(address, bytes));
}

bool RawAgent::PushStepDone(uint64_t step, uint32_t thread) {
  reprise_slot record = AllocRecord(0);
  record.kind = REPRISE_RECORD_STEP_DONE;
  record.thread = thread;
  record.body.step_done = {step, 0, 1000, 2000, 0, 0};
  return Push(record);
}

bool RawAgent::PushStepMem(uint64_t step, uint32_t thread) {
  reprise_slot record = AllocRecord(0);
  record.kind = REPRISE_RECORD_STEP_MEM;
  record.thread = thread;
  record.body.step_mem = {step, 3000, 4000, 0, 5, 0};
  return Push(record);
}

void RawAgent::PushAllocs(uint64_t first, uint64_t count) {
  for (uint64_t i = first; i < first + count; ++i) {
    PushPatiently(AllocRecord(i));
  }
}

void RawAgent::PushPatiently(const reprise_slot& record) {
  while (Load(&slot(Load(&header()->head))->sequence) !=
         Load(&header()->head)) {
    // Sleeps instead of spinning: the reader may need this core.
    usleep(50);
  }
  Push(record);
}

void RawAgent::Tear() { (void)Reserve(); }

}  // namespace reprise::server
