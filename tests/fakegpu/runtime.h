// SPDX-License-Identifier: Apache-2.0
//
// What the parts of the fake CUDA runtime know together: what is allocated,
// what was called how often, whether a stream captures a graph.
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
// The device of this thread, and the bytes in use of one.
int& Current();
size_t Used(int device);

void Count(const std::string& call);
// The last error of this thread, as the runtime keeps it.
cudaError_t& LastError();
cudaError_t Say(cudaError_t error);
// While a stream captures a graph, most of what waits is not allowed.
cudaError_t NotInCapture();
bool Captures(cudaStream_t stream);

}  // namespace fakegpu

#endif  // REPRISE_TESTS_FAKEGPU_RUNTIME_H_
