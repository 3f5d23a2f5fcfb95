// SPDX-License-Identifier: Apache-2.0
//
// What torch's own profiler imports of libcupti besides what the fake of
// tests/profiler has: linked with it, so that it can take the real one's place.
// Nobody's callbacks are called.
#include <stdint.h>

extern "C" {
int cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) { return 0; }
int cuptiEnableCallback(uint32_t, void*, uint32_t, uint32_t) { return 0; }
int cuptiEnableDomain(uint32_t, void*, uint32_t) { return 0; }
int cuptiGetResultString(int, const char** text) {
  *text = "of the fake CUPTI";
  return 0;
}
}
