// SPDX-License-Identifier: Apache-2.0
//
// State that the parts of the fake CUDA runtime share: allocations, call counts
// and whether a stream is capturing a graph.
#ifndef REPRISE_TESTS_FAKEGPU_RUNTIME_H_
#define REPRISE_TESTS_FAKEGPU_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace fakegpu {

// FAKEGPU_DEVICES and FAKEGPU_MEMORY (bytes of each).
int Devices();
size_t Memory();
// The current device of this thread, and the bytes in use on a device.
int& Current();
size_t Used(int device);

void Count(const std::string& call);
// The last error of this thread, as the runtime keeps it.
cudaError_t& LastError();
cudaError_t Say(cudaError_t error);
// Returns an error while a stream captures a graph: CUDA forbids most calls
// that wait then.
cudaError_t NotInCapture();
bool Captures(cudaStream_t stream);

}  // namespace fakegpu

#endif  // REPRISE_TESTS_FAKEGPU_RUNTIME_H_
