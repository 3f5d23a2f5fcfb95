/* A libnvidia-ml.so.1 with one GPU and the functions that `reprise doctor`
 * calls. The environment sets the GPU's peculiarities and the process on it. */
#include <stdlib.h>
#include <string.h>

struct process_info {
  unsigned pid;
  unsigned long long used;
  unsigned instance, compute_instance;
};

static unsigned Setting(const char *name) {
  const char *text = getenv(name);
  return text == NULL ? 0 : (unsigned)strtoul(text, NULL, 10);
}

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  static int gpu;
  *device = &gpu;
  return index == 0 ? 0 : 2;
}
int nvmlDeviceGetName(void *device, char *name, unsigned size) {
  (void)device;
  strncpy(name, "Fake H100", size);
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  (void)device;
  *major = (int)Setting("FAKE_CAPABILITY");
  *minor = 0;
  return *major == 0 ? 3 : 0; /* 3: not supported */
}
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
  (void)device;
  *current = *pending = Setting("FAKE_MIG");
  return 0;
}
int nvmlDeviceGetVirtualizationMode(void *device, unsigned *mode) {
  (void)device;
  *mode = Setting("FAKE_VGPU") ? 2 : 0;
  return 0;
}
int nvmlSystemGetConfComputeState(unsigned *state) {
  state[0] = 1;
  state[1] = Setting("FAKE_CC");
  state[2] = 0;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                            struct process_info *infos) {
  (void)device;
  const unsigned pid = Setting("FAKE_PID");
  *count = pid != 0;
  if (pid != 0) infos[0].pid = pid;
  return 0;
}
