// SPDX-License-Identifier: Apache-2.0
//
// Devices, errors and call counts of the fake CUDA runtime, and the driver
// functions that torch looks up through it.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime.h"

namespace fakegpu {
namespace {

std::mutex lock;
std::map<std::string, long> counts;

}  // namespace

int Devices() {
  static const char* const text = getenv("FAKEGPU_DEVICES");
  static const int count = text == nullptr ? 1 : atoi(text);
  return count;
}

int& Current() {
  thread_local int current = 0;
  return current;
}

void Count(const std::string& call) {
  const std::lock_guard<std::mutex> guard(lock);
  ++counts[call];
}

cudaError_t& LastError() {
  thread_local cudaError_t last = cudaSuccess;
  return last;
}

cudaError_t Say(cudaError_t error) {
  if (error != cudaSuccess) LastError() = error;
  return error;
}

}  // namespace fakegpu

// Returns "call=count" lines since the last reset.
FAKE_API const char* fakegpu_counts() {
  static std::string text;
  const std::lock_guard<std::mutex> guard(fakegpu::lock);
  text.clear();
  for (const auto& [call, count] : fakegpu::counts)
    text += call + "=" + std::to_string(count) + "\n";
  return text.c_str();
}
FAKE_API void fakegpu_reset_counts() {
  const std::lock_guard<std::mutex> guard(fakegpu::lock);
  fakegpu::counts.clear();
}

FAKE_API cudaError_t cudaGetDeviceCount(int* to) {
  *to = fakegpu::Devices();
  return cudaSuccess;
}
FAKE_API cudaError_t cudaGetDevice(int* to) {
  *to = fakegpu::Current();
  return cudaSuccess;
}
FAKE_API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= fakegpu::Devices())
    return fakegpu::Say(cudaErrorInvalidDevice);
  fakegpu::Current() = device;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDriverGetVersion(int* to) {
  *to = 13000;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaRuntimeGetVersion(int* to) {
  *to = 13000;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int device) {
  if (device < 0 || device >= fakegpu::Devices())
    return fakegpu::Say(cudaErrorInvalidDevice);
  std::memset(to, 0, sizeof *to);
  std::snprintf(to->name, sizeof to->name, "fake GPU");
  to->uuid.bytes[0] = static_cast<char>(device + 1);
  to->totalGlobalMem = fakegpu::Memory();
  to->sharedMemPerBlock = 49152;
  to->sharedMemPerBlockOptin = 166912;
  to->sharedMemPerMultiprocessor = 167936;
  to->regsPerBlock = to->regsPerMultiprocessor = 65536;
  to->warpSize = 32;
  to->maxThreadsPerBlock = to->maxThreadsDim[0] = to->maxThreadsDim[1] = 1024;
  to->maxThreadsDim[2] = 64;
  to->maxThreadsPerMultiProcessor = 2048;
  to->maxGridSize[0] = 2147483647;
  to->maxGridSize[1] = to->maxGridSize[2] = 65535;
  to->totalConstMem = 65536;
  to->major = 8;
  to->multiProcessorCount = 108;
  to->textureAlignment = 512;
  to->l2CacheSize = 40 << 20;
  to->unifiedAddressing = to->concurrentKernels = to->canMapHostMemory = 1;
  to->managedMemory = to->streamPrioritiesSupported = 1;
  to->memoryPoolsSupported = to->cooperativeLaunch = 1;
  to->memoryBusWidth = 5120;
  to->pciBusID = device + 1;
  to->maxBlocksPerMultiProcessor = 32;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceGetAttribute(int* to, cudaDeviceAttr which,
                                            int) {
  static const std::map<int, int> values{
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMultiProcessorCount, 108},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrComputeCapabilityMajor, 8},
      {cudaDevAttrComputeCapabilityMinor, 0},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 166912}};
  const auto found = values.find(which);
  *to = found == values.end() ? 1 : found->second;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceCanAccessPeer(int* to, int, int) {
  *to = 1;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceGetPCIBusId(char* to, int size, int device) {
  std::snprintf(to, static_cast<size_t>(size), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least,
                                                      int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceSynchronize() {
  fakegpu::Count("cudaDeviceSynchronize");
  if (fakegpu::Capturing()) return fakegpu::NotInCapture();
  fakegpu::FinishDevice(fakegpu::Current());
  return cudaSuccess;
}
FAKE_API cudaError_t cudaProfilerStart() { return cudaSuccess; }
FAKE_API cudaError_t cudaProfilerStop() { return cudaSuccess; }

FAKE_API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "an error of the fake GPU";
  }
}
FAKE_API const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
FAKE_API cudaError_t cudaGetLastError() {
  const cudaError_t error = fakegpu::LastError();
  fakegpu::LastError() = cudaSuccess;
  return error;
}
FAKE_API cudaError_t cudaPeekAtLastError() { return fakegpu::LastError(); }

FAKE_API cudaError_t cudaIpcCloseMemHandle(void*) {
  return fakegpu::Say(cudaErrorNotSupported);
}
FAKE_API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  return fakegpu::Say(cudaErrorNotSupported);
}
FAKE_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return fakegpu::Say(cudaErrorNotSupported);
}
FAKE_API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*,
                                            cudaIpcEventHandle_t) {
  return fakegpu::Say(cudaErrorNotSupported);
}
FAKE_API cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t,
                                          unsigned) {
  return fakegpu::Say(cudaErrorNotSupported);
}

FAKE_API cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** to, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  *to = driver == nullptr ? nullptr : dlsym(driver, name);
  if (*to == nullptr && driver != nullptr)
    *to = dlsym(driver, "fakegpu_unsupported");
  if (result != nullptr)
    *result = *to == nullptr ? cudaDriverEntryPointSymbolNotFound
                             : cudaDriverEntryPointSuccess;
  return *to == nullptr ? fakegpu::Say(cudaErrorNotSupported) : cudaSuccess;
}
