#include "profiler/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "profiler/clock.h"
#include "profiler/include/reprise_sink.h"

namespace reprise::profiler {
namespace {

constexpr int kMaxParts = 3;
constexpr uint64_t kRecordsPerEntry = 16384;  // 1 MiB

bool WriteAll(int fd, iovec *vectors, int count) {
  while (count > 0) {
    const ssize_t n = writev(fd, vectors, count);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    size_t left = static_cast<size_t>(n);
    while (count > 0 && left >= vectors->iov_len) {
      left -= vectors->iov_len;
      ++vectors;
      --count;
    }
    if (count > 0) {
      vectors->iov_base = static_cast<uint8_t *>(vectors->iov_base) + left;
      vectors->iov_len -= left;
    }
  }
  return true;
}

// Creates a new file: never blocks on a FIFO, follows a link or overwrites.
int CreateFile(const char *path) {
  return open(path,
              O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW |
                  O_NONBLOCK | O_APPEND,
              0644);
}

// Returns how many published records from `tail` on are contiguous in the ring.
uint64_t ContiguousRecords(const Ring *ring, uint64_t tail, uint64_t max) {
  const uint64_t until_wrap = ring->slot_count - (tail & ring->mask);
  if (max > until_wrap) max = until_wrap;
  uint64_t n = 0;
  while (n < max &&
         __atomic_load_n(&ring->slots[(tail + n) & ring->mask].sequence,
                         __ATOMIC_ACQUIRE) == tail + n + 1)
    ++n;
  return n;
}

void FreeSlots(Ring *ring, uint64_t tail, uint64_t n) {
  __atomic_store_n(&ring->header->tail, tail + n, __ATOMIC_RELEASE);
  for (uint64_t p = tail; p < tail + n; ++p)
    __atomic_store_n(&ring->slots[p & ring->mask].sequence,
                     p + ring->slot_count, __ATOMIC_RELEASE);
}

void WriteNewNames(Agent *agent) {
  Outgoing &outgoing = agent->outgoing;
  while (outgoing.names_sent < NameCount(&agent->names)) {
    uint32_t last;
    const size_t n = PackNames(&agent->names, outgoing.names_sent,
                               agent->outbox, sizeof agent->outbox, &last);
    const BodyPart part = {agent->outbox, n};
    if (!WriteSinkEntry(agent, REPRISE_MSG_DEFS, &part, 1)) return;
    outgoing.names_sent = last;
  }
}

}  // namespace

const char *OpenSink(Agent *agent, const char *sink_path, char *why,
                     size_t why_bytes) {
  const char *path = sink_path + 5;
  if (strncmp(sink_path, "file:", 5) != 0 || *path == 0) {
    snprintf(why, why_bytes, "sink: must be file:PATH, got %.80s", sink_path);
    return why;
  }
  int fd = CreateFile(path);
  if (fd < 0 && errno == EEXIST) {
    char own_path[4096];
    const int n = snprintf(own_path, sizeof own_path, "%s.%d", path, getpid());
    errno = ENAMETOOLONG;
    if (n > 0 && static_cast<size_t>(n) < sizeof own_path)
      fd = CreateFile(own_path);
  }
  if (fd < 0) {
    snprintf(why, why_bytes, "sink %.120s: cannot create the file: %s", path,
             strerror(errno));
    return why;
  }
  agent->sink = {};
  agent->sink.file.Hold(fd);
  const Identity &identity = agent->identity;
  const BodyPart hello[] = {{&identity.hello, sizeof identity.hello},
                            {identity.labels, identity.hello.labels_bytes}};
  if (WriteSinkEntry(agent, REPRISE_MSG_HELLO, hello, 2)) return nullptr;
  snprintf(why, why_bytes, "%s", agent->sink.why);
  agent->sink.file.Close();
  return why;
}

bool WriteSinkEntry(Agent *agent, uint16_t type, const BodyPart *parts,
                    int count) {
  Sink &sink = agent->sink;
  if (!sink.file.open()) return false;
  static const uint64_t kZeros = 0;
  reprise_msg_header header = {};
  header.magic = REPRISE_WIRE_MAGIC;
  header.type = type;
  header.layout = REPRISE_RING_LAYOUT;
  iovec vectors[2 + kMaxParts] = {{&header, sizeof header}};
  for (int i = 0; i < count; ++i) {
    vectors[1 + i] = {const_cast<void *>(parts[i].bytes), parts[i].n};
    header.size += static_cast<uint32_t>(parts[i].n);
  }
  const size_t padding = (8 - header.size % 8) % 8;
  vectors[1 + count] = {const_cast<uint64_t *>(&kZeros), padding};

  if (WriteAll(sink.file.fd(), vectors, 2 + count)) {
    sink.bytes += sizeof header + header.size + padding;
    sink.retry_ns = 0;
    sink.why[0] = 0;
    return true;
  }
  snprintf(sink.why, sizeof sink.why, "sink: cannot write: %s",
           strerror(errno));
  sink.retry_ns = NowNs() + kSecond;
  // If this fails too, the file ends in a partial entry, as after a kill.
  if (ftruncate(sink.file.fd(), static_cast<off_t>(sink.bytes)) != 0)
    sink.file.Close();
  return false;
}

void SpillSink(Agent *agent, uint64_t max_records, uint64_t now_ns) {
  Ring *ring = CurrentRing(agent);
  Sink &sink = agent->sink;
  if (ring == nullptr || !sink.file.open() || now_ns < sink.retry_ns) return;

  while (max_records > 0) {
    uint64_t wanted =
        max_records < kRecordsPerEntry ? max_records : kRecordsPerEntry;
    const uint64_t n = ContiguousRecords(ring, sink.tail, wanted);
    // After counting the records, so that their names are included.
    WriteNewNames(agent);
    if (n == 0) return;
    const BodyPart part = {&ring->slots[sink.tail & ring->mask],
                           n * REPRISE_SLOT_BYTES};
    if (!WriteSinkEntry(agent, REPRISE_SINK_RECORDS, &part, 1)) return;
    FreeSlots(ring, sink.tail, n);
    sink.tail += n;
    max_records -= n;
  }
}

}  // namespace reprise::profiler
