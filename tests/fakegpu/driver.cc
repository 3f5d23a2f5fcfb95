// SPDX-License-Identifier: Apache-2.0
//
// The fake's libcuda.so.1: the driver functions that torch calls itself, for
// expandable segments.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>

#undef cuMemGetAddressRange

#define API extern "C" __attribute__((visibility("default")))
namespace {
int (*take)(int, size_t) = (int (*)(int, size_t))dlsym(RTLD_DEFAULT,
                                                       "fakegpu_take");
void (*give)(int, size_t) = (void (*)(int, size_t))dlsym(RTLD_DEFAULT,
                                                         "fakegpu_give");
void (*unmapped)(void*,
                 size_t) = (void (*)(void*, size_t))dlsym(RTLD_DEFAULT,
                                                          "fakegpu_unmapped");
struct Handle {
  size_t bytes;
  int device;
};
}  // namespace
API CUresult fakegpu_unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }
API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int* v) {
  *v = 13000;
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult, const char** s) {
  *s = "fake driver";
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult, const char** s) {
  *s = "CUDA_ERROR";
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice* d, int n) {
  *d = n;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int* n) {
  *n = 1;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute, CUdevice) {
  *v = 1;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext* c) {
  *c = (CUcontext)0x77;
  return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* f, int* a) {
  if (f) *f = 0;
  if (a) *a = 1;
  return CUDA_SUCCESS;
}
API CUresult cuMemGetAllocationGranularity(size_t* g,
                                           const CUmemAllocationProp*,
                                           CUmemAllocationGranularity_flags) {
  *g = 2u << 20;
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr* p, size_t n, size_t, CUdeviceptr,
                                 unsigned long long) {
  void* at = mmap(nullptr, n, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *p = (CUdeviceptr)at;
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr p, size_t n) {
  munmap((void*)p, n);
  return CUDA_SUCCESS;
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle* h, size_t n,
                         const CUmemAllocationProp* prop, unsigned long long) {
  if (take && take(prop->location.id, n)) return CUDA_ERROR_OUT_OF_MEMORY;
  *h = (CUmemGenericAllocationHandle) new Handle{n, prop->location.id};
  return CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
  Handle* handle = (Handle*)h;
  if (give) give(handle->device, handle->bytes);
  delete handle;
  return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr p, size_t n, size_t,
                      CUmemGenericAllocationHandle, unsigned long long) {
  void* at =
      mmap((void*)p, n, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr p, size_t n) {
  if (unmapped) unmapped((void*)p, n);
  mmap((void*)p, n, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return CUDA_SUCCESS;
}
API CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*,
                            size_t) {
  return CUDA_SUCCESS;
}
