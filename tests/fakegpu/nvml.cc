// SPDX-License-Identifier: Apache-2.0
//
// The fake's libnvidia-ml.so.1: the functions that torch calls for expandable
// segments and for its out-of-memory message.
#define API extern "C" __attribute__((visibility("default")))

API int nvmlInit_v2(void) { return 0; }
API int nvmlShutdown(void) { return 0; }
API int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  (void)id;
  *device = (void*)1;
  return 0;
}
API int nvmlDeviceGetComputeRunningProcesses(void* d, unsigned* n, void* i) {
  (void)d;
  (void)i;
  *n = 0;
  return 0;
}
API int nvmlDeviceGetNvLinkRemoteDeviceType(void* d, unsigned l, void* t) {
  (void)d;
  (void)l;
  (void)t;
  return 3;
}
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* d, unsigned l, void* t) {
  (void)d;
  (void)l;
  (void)t;
  return 3;
}
API int nvmlDeviceGetGpuFabricInfoV(void* d, void* i) {
  (void)d;
  (void)i;
  return 0;
}
API int nvmlSystemGetCudaDriverVersion_v2(int* v) {
  *v = 13000;
  return 0;
}
API int nvmlDeviceGetCount_v2(unsigned* n) {
  *n = 1;
  return 0;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** d) {
  (void)i;
  *d = (void*)1;
  return 0;
}
