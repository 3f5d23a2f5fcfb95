// CLOCK_MONOTONIC, the clock of every record.
#pragma once

#include <stdint.h>
#include <time.h>

namespace reprise::profiler {

constexpr uint64_t kMillisecond = 1000000;
constexpr uint64_t kSecond = 1000000000;

inline uint64_t ReadClock(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * kSecond +
         static_cast<uint64_t>(t.tv_nsec);
}
inline uint64_t NowNs() { return ReadClock(CLOCK_MONOTONIC); }

}  // namespace reprise::profiler
