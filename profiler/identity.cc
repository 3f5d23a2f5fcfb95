#include "profiler/identity.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "profiler/clock.h"

namespace reprise::profiler {
namespace {

// Reads the beginning of a file, zero-terminated; empty if it cannot be read.
void ReadStart(const char *path, char *text, size_t capacity) {
  text[0] = 0;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const ssize_t n = read(fd, text, capacity - 1);
  text[n > 0 ? n : 0] = 0;
  close(fd);
}

// Returns field 22 of /proc/self/stat. The command in field 2 may contain
// blanks and parentheses, so fields are counted from the last parenthesis.
uint64_t ProcessStartTicks() {
  char stat[1024];
  ReadStart("/proc/self/stat", stat, sizeof stat);
  const char *next = strrchr(stat, ')');
  for (int field = 3; next != nullptr && field <= 22; ++field)
    next = strchr(next + 1, ' ');
  return next == nullptr ? 0 : strtoull(next + 1, nullptr, 10);
}

// Returns the first of the variables that holds a number: launchers use
// different ones.
uint32_t NumberFrom(const char *const (&variables)[3], uint32_t otherwise) {
  for (const char *variable : variables) {
    const char *text = getenv(variable);
    if (text == nullptr || *text < '0' || *text > '9') continue;
    char *end;
    const unsigned long value = strtoul(text, &end, 10);
    if (*end == 0 && value <= UINT32_MAX) return static_cast<uint32_t>(value);
  }
  return otherwise;
}

// Appends a label taken from the environment, if there is room.
void AddLabel(Identity *identity, const char *key, const char *variable) {
  const char *value = getenv(variable);
  if (value == nullptr || *value == 0 || strchr(value, '\n') != nullptr) return;
  uint32_t *used = &identity->hello.labels_bytes;
  const size_t left = kMaxLabelBytes - *used;
  const bool separate = *used > 0 && identity->labels[*used - 1] != '\n';
  const int n = snprintf(identity->labels + *used, left, "%s%s=%s\n",
                         separate ? "\n" : "", key, value);
  if (n > 0 && static_cast<size_t>(n) < left) *used += static_cast<uint32_t>(n);
}

}  // namespace

void NewUuidV7(char text[40]) {
  uint8_t bytes[16];
  if (getrandom(bytes, sizeof bytes, GRND_NONBLOCK) !=
      static_cast<ssize_t>(sizeof bytes)) {
    // At boot, before the kernel's pool is seeded: unique on this machine must
    // do.
    const uint64_t parts[2] = {NowNs(), static_cast<uint64_t>(getpid())};
    memcpy(bytes, parts, sizeof bytes);
  }
  const uint64_t ms = ReadClock(CLOCK_REALTIME) / kMillisecond;
  for (int i = 0; i < 6; ++i)
    bytes[i] = static_cast<uint8_t>(ms >> (8 * (5 - i)));
  bytes[6] = static_cast<uint8_t>(0x70 | (bytes[6] & 0x0f));  // version 7
  bytes[8] = static_cast<uint8_t>(0x80 | (bytes[8] & 0x3f));  // RFC variant
  char *next = text;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *next++ = '-';
    next += snprintf(next, 3, "%02x", bytes[i]);
  }
}

const char *Identify(const char *run_id, const char *family_run_id,
                     const char *labels, Identity *identity) {
  memset(static_cast<void *>(identity), 0, sizeof *identity);
  reprise_msg_hello &hello = identity->hello;

  if (run_id == nullptr || *run_id == 0) run_id = getenv("REPRISE_RUN_ID");
  if (run_id == nullptr || *run_id == 0) run_id = family_run_id;
  char fresh[40];
  if (*run_id == 0) {
    NewUuidV7(fresh);
    run_id = fresh;
  }
  if (strlen(run_id) >= sizeof hello.run_id)
    return "run_id: must be at most 71 bytes";
  memcpy(hello.run_id, run_id, strlen(run_id));

  if (labels != nullptr) {
    const size_t n = strlen(labels);
    if (n >= kMaxLabelBytes) return "labels: must be less than 8,192 bytes";
    memcpy(identity->labels, labels, n);
    hello.labels_bytes = static_cast<uint32_t>(n);
  }
  AddLabel(identity, "slurm_job_id", "SLURM_JOB_ID");
  AddLabel(identity, "pod_uid", "POD_UID");

  NewUuidV7(hello.session_id);
  ReadStart("/proc/sys/kernel/random/boot_id", hello.boot_id,
            sizeof hello.boot_id);
  hello.boot_id[strcspn(hello.boot_id, "\n")] = 0;
  gethostname(hello.host, sizeof hello.host - 1);

  hello.abi = 1;
  hello.ring_layout = REPRISE_RING_LAYOUT;
  hello.pid = static_cast<uint32_t>(getpid());
  hello.pid_start_ticks = ProcessStartTicks();
  hello.rank = NumberFrom({"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}, 0);
  hello.local_rank = NumberFrom(
      {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}, 0);
  hello.world =
      NumberFrom({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"}, 1);
  hello.clock_id = REPRISE_CLOCK_MONOTONIC;
  hello.monotonic_ns = static_cast<int64_t>(NowNs());
  hello.realtime_ns = static_cast<int64_t>(ReadClock(CLOCK_REALTIME));
  return nullptr;
}

}  // namespace reprise::profiler
