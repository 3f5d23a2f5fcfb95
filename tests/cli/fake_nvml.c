/* A libnvidia-ml.so.1 with one GPU and the functions that `reprise doctor`
 * calls. The environment sets the GPU's peculiarities. */
#include <stdlib.h>
#include <string.h>

static unsigned Setting(const char* name) {
  const char* text = getenv(name);
  return text == NULL ? 0 : (unsigned)strtoul(text, NULL, 10);
}

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static int gpu;
  *device = &gpu;
  return index == 0 ? 0 : 2;
}
int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  (void)device;
  strncpy(name, "Fake H100", size);
  return 0;
}
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  (void)device;
  *current = *pending = Setting("FAKE_MIG");
  return 0;
}
int nvmlDeviceGetVirtualizationMode(void* device, unsigned* mode) {
  (void)device;
  *mode = Setting("FAKE_VGPU") ? 2 : 0;
  return 0;
}
int nvmlDeviceGetMemoryAffinity(void* device, unsigned words,
                                unsigned long* nodes, unsigned scope) {
  (void)device, (void)words, (void)scope;
  *nodes = Setting("FAKE_NODES");
  return *nodes ? 0 : 3;
}
int nvmlSystemGetConfComputeState(unsigned* state) {
  state[0] = 1;
  state[1] = Setting("FAKE_CC");
  state[2] = 0;
  return 0;
}
