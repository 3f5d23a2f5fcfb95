#include "profiler/cupti_recording.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "profiler/agent.h"

namespace reprise::profiler {
namespace {

bool Write(int fd, const void *bytes, size_t n) {
  const uint8_t *next = static_cast<const uint8_t *>(bytes);
  while (n > 0) {
    const ssize_t wrote = write(fd, next, n);
    if (wrote <= 0) return false;
    next += wrote;
    n -= static_cast<size_t>(wrote);
  }
  return true;
}

// Calls `use` with every kernel's name that differs from the previous one.
template <typename Use>
void ForNames(const DeviceTracer &tracer, uint8_t *buffer, size_t valid,
              const Use &use) {
  const char *before = nullptr;
  for (uint8_t *record = nullptr;
       tracer.calls.ActivityGetNextRecord(buffer, valid, &record) == 0;) {
    if (cupti::Field<uint32_t>(record, 0) != cupti::kConcurrentKernel) continue;
    const char *name =
        cupti::Field<const char *>(record, cupti::kKernelLayout.name);
    if (name != nullptr && name != before) use(name);
    before = name;
  }
}

}  // namespace

void RecordBuffer(Agent *agent, uint8_t *buffer, size_t valid) {
  DeviceTracer &tracer = agent->tracer;
  const uint32_t number =
      __atomic_fetch_add(&tracer.recorded, 1u, __ATOMIC_RELAXED);
  if (number >= kMaxRecordings) return;
  char path[sizeof tracer.recording + 48];
  snprintf(path, sizeof path, "%s/cupti-%d-%u.rrc", tracer.recording,
           static_cast<int>(getpid()), number);
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return;
  CuptiRecordingHeader header = {kCuptiRecordingMagic,
                                 tracer.facts.cupti_version,
                                 tracer.facts.driver_version,
                                 tracer.clock_id,
                                 valid,
                                 0,
                                 0};
  ForNames(tracer, buffer, valid, [&](const char *) { ++header.names; });
  bool good = Write(fd, &header, sizeof header) && Write(fd, buffer, valid);
  ForNames(tracer, buffer, valid, [&](const char *name) {
    const uint64_t address = reinterpret_cast<uint64_t>(name);
    const uint32_t n = static_cast<uint32_t>(strlen(name));
    good = good && Write(fd, &address, sizeof address) &&
           Write(fd, &n, sizeof n) && Write(fd, name, n);
  });
  close(fd);
  if (!good) unlink(path);
}

}  // namespace reprise::profiler
