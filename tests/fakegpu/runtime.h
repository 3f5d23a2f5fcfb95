// SPDX-License-Identifier: Apache-2.0
//
// State that the parts of the fake CUDA runtime share: allocations, call counts,
// what streams still have to do, and whether one is capturing a graph.
#ifndef REPRISE_TESTS_FAKEGPU_RUNTIME_H_
#define REPRISE_TESTS_FAKEGPU_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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
bool Capturing();
// Adds to the graph that is captured what one of its streams is given; it does
// not run before the graph is launched.
void Record(std::function<void()> work);

// ---- What streams have to do (runtime_queue.cc)

struct Queue;
// A place in the order of a stream: what was submitted up to it.
struct Point {
  Queue* queue = nullptr;
  uint64_t number = 0;
};

cudaStream_t MakeStream(bool blocking);
// A handle that means the same stream whatever device is the current one: each
// has a default stream.
cudaStream_t Named(cudaStream_t stream, int device);
// Adds work to a stream. It runs now, or at a later moment that CUDA allows.
Point Submit(cudaStream_t stream, std::function<void()> work);
// The same of work that uses no memory of the device.
Point Note(cudaStream_t stream, std::function<void()> work);
// Makes what a stream does from now on wait for a point.
void Wait(cudaStream_t stream, Point point);
// All that a stream has to do so far.
Point End(cudaStream_t stream);
bool Done(Point point);
// Whether a program that asks if a point is done is told so: `asked` counts its
// questions, and some are answered with no before the work is made to run.
bool DoneWhenAsked(Point point, int& asked);
// Runs what a point needs; what a stream has to do, so that its memory may be
// touched now; what the streams of a device, or of all devices, have to do.
void RunTo(Point point);
void Finish(cudaStream_t stream);
void Settle(cudaStream_t stream);
void FinishDevice(int device);
void SettleAll();
// Whether work runs as soon as it is submitted.
bool AtOnce();

// Device memory that its stream may use for something else: it is filled before
// the next work of the stream, which is the first that could do so. Not where it
// goes back to the system before. Streams are named. Memory of graphs is left
// alone but while one is captured, whose launches fill it then: what lies there
// between two of them is theirs, even where torch keeps no book of it.
void SpoilDevice(cudaStream_t stream, void* at, size_t bytes, bool of_graphs);
void KeepUnspoiled(void* at, size_t bytes);
// Host memory that is filled once the streams have come to where they are now.
void SpoilHost(const std::vector<cudaStream_t>& streams, void* at,
               size_t bytes);

}  // namespace fakegpu

#endif  // REPRISE_TESTS_FAKEGPU_RUNTIME_H_
