// The CUDA calls that put kernels, copies and sets on a device, by CUPTI's
// numbers and names.
//
// CUPTI makes external correlation records only for calls that have an API
// record, so API records of these calls are enabled while ops are traced. Of a
// call that is missing here, the work belongs to no op. A number is never used
// twice, and a library refuses one that it does not know.
//
// The names are for tests/profiler/cupti_calls_test.cc, which compares them
// with NVIDIA's and finds what is new there; it also lists what is left out,
// and why. The agent has only the sets, as bits.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler::cupti {

struct Call {
  uint16_t number;
  // The same call for default streams per thread (_ptsz, _ptds); 0: none.
  uint16_t per_thread;
  const char *name;  // without the version that CUPTI appends to the runtime's
};

constexpr Call kRuntimeTable[] = {
    {13, 213, "cudaLaunch"},
    {211, 214, "cudaLaunchKernel"},
    {269, 270, "cudaLaunchCooperativeKernel"},
    {272, 0, "cudaLaunchCooperativeKernelMultiDevice"},
    {311, 312, "cudaGraphLaunch"},
    {430, 431, "cudaLaunchKernelExC"},
    {505, 506, "__cudaLaunchKernel"},
    {31, 215, "cudaMemcpy"},
    {32, 216, "cudaMemcpy2D"},
    {33, 217, "cudaMemcpyToArray"},
    {34, 218, "cudaMemcpy2DToArray"},
    {35, 219, "cudaMemcpyFromArray"},
    {36, 220, "cudaMemcpy2DFromArray"},
    {37, 221, "cudaMemcpyArrayToArray"},
    {38, 222, "cudaMemcpy2DArrayToArray"},
    {39, 223, "cudaMemcpyToSymbol"},
    {40, 224, "cudaMemcpyFromSymbol"},
    {41, 225, "cudaMemcpyAsync"},
    {42, 226, "cudaMemcpyToArrayAsync"},
    {43, 227, "cudaMemcpyFromArrayAsync"},
    {44, 228, "cudaMemcpy2DAsync"},
    {45, 229, "cudaMemcpy2DToArrayAsync"},
    {46, 230, "cudaMemcpy2DFromArrayAsync"},
    {47, 231, "cudaMemcpyToSymbolAsync"},
    {48, 232, "cudaMemcpyFromSymbolAsync"},
    {144, 245, "cudaMemcpy3D"},
    {145, 246, "cudaMemcpy3DAsync"},
    {160, 0, "cudaMemcpyPeer"},
    {161, 0, "cudaMemcpyPeerAsync"},
    {162, 249, "cudaMemcpy3DPeer"},
    {163, 250, "cudaMemcpy3DPeerAsync"},
    {482, 483, "cudaMemcpyBatchAsync"},
    {484, 485, "cudaMemcpy3DBatchAsync"},
    {509, 510, "cudaMemcpyBatchAsync"},
    {511, 512, "cudaMemcpy3DBatchAsync"},
    {554, 555, "cudaMemcpyWithAttributesAsync"},
    {556, 557, "cudaMemcpy3DWithAttributesAsync"},
    {49, 233, "cudaMemset"},
    {50, 234, "cudaMemset2D"},
    {51, 235, "cudaMemsetAsync"},
    {52, 236, "cudaMemset2DAsync"},
    {142, 243, "cudaMemset3D"},
    {143, 244, "cudaMemset3DAsync"},
};

constexpr Call kDriverTable[] = {
    {115, 0, "cuLaunch"},
    {116, 0, "cuLaunchGrid"},
    {117, 0, "cuLaunchGridAsync"},
    {307, 442, "cuLaunchKernel"},
    {477, 478, "cuLaunchCooperativeKernel"},
    {480, 0, "cuLaunchCooperativeKernelMultiDevice"},
    {514, 515, "cuGraphLaunch"},
    {652, 653, "cuLaunchKernelEx"},
    {276, 397, "cuMemcpyHtoD_v2"},
    {277, 421, "cuMemcpyHtoDAsync_v2"},
    {278, 398, "cuMemcpyDtoH_v2"},
    {279, 422, "cuMemcpyDtoHAsync_v2"},
    {280, 399, "cuMemcpyDtoD_v2"},
    {281, 423, "cuMemcpyDtoDAsync_v2"},
    {282, 403, "cuMemcpyAtoH_v2"},
    {283, 420, "cuMemcpyAtoHAsync_v2"},
    {284, 401, "cuMemcpyAtoD_v2"},
    {285, 400, "cuMemcpyDtoA_v2"},
    {286, 404, "cuMemcpyAtoA_v2"},
    {287, 405, "cuMemcpy2D_v2"},
    {288, 406, "cuMemcpy2DUnaligned_v2"},
    {289, 424, "cuMemcpy2DAsync_v2"},
    {290, 407, "cuMemcpy3D_v2"},
    {291, 425, "cuMemcpy3DAsync_v2"},
    {292, 402, "cuMemcpyHtoA_v2"},
    {293, 419, "cuMemcpyHtoAAsync_v2"},
    {305, 408, "cuMemcpy"},
    {306, 418, "cuMemcpyAsync"},
    {318, 409, "cuMemcpyPeer"},
    {319, 426, "cuMemcpyPeerAsync"},
    {320, 410, "cuMemcpy3DPeer"},
    {321, 427, "cuMemcpy3DPeerAsync"},
    {776, 777, "cuMemcpyBatchAsync"},
    {778, 779, "cuMemcpy3DBatchAsync"},
    {796, 797, "cuMemcpyBatchAsync_v2"},
    {798, 799, "cuMemcpy3DBatchAsync_v2"},
    {837, 838, "cuMemcpyWithAttributesAsync"},
    {839, 840, "cuMemcpy3DWithAttributesAsync"},
    {216, 428, "cuMemsetD8Async"},
    {218, 429, "cuMemsetD16Async"},
    {220, 430, "cuMemsetD32Async"},
    {222, 431, "cuMemsetD2D8Async"},
    {224, 432, "cuMemsetD2D16Async"},
    {226, 433, "cuMemsetD2D32Async"},
    {249, 411, "cuMemsetD8_v2"},
    {250, 412, "cuMemsetD16_v2"},
    {251, 413, "cuMemsetD32_v2"},
    {252, 414, "cuMemsetD2D8_v2"},
    {253, 415, "cuMemsetD2D16_v2"},
    {254, 416, "cuMemsetD2D32_v2"},
};

// Numbers of calls as bits.
struct CallSet {
  static constexpr uint32_t kLimit = 1024;  // above every number
  uint64_t words[kLimit / 64];

  constexpr bool Has(uint32_t number) const {
    return number < kLimit && (words[number / 64] >> number % 64 & 1) != 0;
  }
  constexpr void Add(uint32_t number) {
    words[number / 64] |= uint64_t{1} << number % 64;
  }
};

template <size_t kCount>
constexpr CallSet SetOf(const Call (&calls)[kCount]) {
  CallSet set = {};
  for (const Call &call : calls) {
    set.Add(call.number);
    if (call.per_thread != 0) set.Add(call.per_thread);
  }
  return set;
}

constexpr CallSet kRuntimeCalls = SetOf(kRuntimeTable);
constexpr CallSet kDriverCalls = SetOf(kDriverTable);

}  // namespace reprise::profiler::cupti
