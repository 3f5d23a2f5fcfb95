// SPDX-License-Identifier: Apache-2.0
//
// Streams, events, launches and graphs of the fake CUDA runtime. A stream is a
// queue (runtime_queue.cc), an event is a point in it, and a kernel does nothing
// (kernels.cc submits the CPU's in its place). A graph is what its streams were
// given while it was captured, in that order; nothing of it runs before it is
// launched.
#include <time.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "runtime.h"

namespace fakegpu {
namespace {

struct Graph {
  std::vector<std::function<void()>> works;
};

std::atomic<bool> capturing{false};
std::atomic<unsigned long> captures{0};
std::recursive_mutex graph_lock;
using GraphGuard = std::lock_guard<std::recursive_mutex>;
// The stream of the capture and those that joined it; and what it captures.
std::set<cudaStream_t> captured;
std::shared_ptr<Graph> graph;

using Handle = std::shared_ptr<Graph>;
Handle& Of(void* handle) { return *static_cast<Handle*>(handle); }

// The last record of an event. Waits keep it: an event may be recorded again.
struct Recorded {
  Point point;
  double ms = 0;
  int asked = 0;
  unsigned long capture = 0;  // number of the one that it is part of
  bool never = true;
};
struct Event {
  std::shared_ptr<Recorded> last = std::make_shared<Recorded>();
};
Recorded& Last(cudaEvent_t event) {
  return *reinterpret_cast<Event*>(event)->last;
}

double NowMs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 +
         static_cast<double>(now.tv_nsec) * 1e-6;
}

cudaError_t NewStream(cudaStream_t* to, unsigned flags) {
  *to = MakeStream((flags & cudaStreamNonBlocking) == 0);
  return cudaSuccess;
}

cudaError_t Asked(Point point, int& asked) {
  return DoneWhenAsked(point, asked) ? cudaSuccess : Say(cudaErrorNotReady);
}

template <typename T>
cudaError_t Made(T* to) {
  *to = reinterpret_cast<T>(size_t{0x40});
  return cudaSuccess;
}

cudaError_t Launched() {
  Count("launch");
  return cudaSuccess;
}

}  // namespace

cudaError_t NotInCapture() {
  return capturing ? Say(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

bool Capturing() { return capturing; }

bool Captures(cudaStream_t stream) {
  if (!capturing) return false;
  const GraphGuard guard(graph_lock);
  return captured.count(stream) > 0;
}

void Record(std::function<void()> work) {
  const GraphGuard guard(graph_lock);
  graph->works.push_back(std::move(work));
}

}  // namespace fakegpu

FAKE_API cudaError_t cudaStreamCreate(cudaStream_t* to) {
  return fakegpu::NewStream(to, cudaStreamDefault);
}
FAKE_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* to,
                                               unsigned flags) {
  return fakegpu::NewStream(to, flags);
}
FAKE_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* to,
                                                  unsigned flags, int) {
  return fakegpu::NewStream(to, flags);
}
FAKE_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  fakegpu::Finish(stream);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamGetPriority(cudaStream_t, int* to) {
  *to = 0;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  static thread_local std::pair<cudaStream_t, int> last;
  if (last.first != stream) last = {stream, 0};
  const cudaError_t found = fakegpu::Asked(fakegpu::End(stream), last.second);
  if (found == cudaSuccess) last.second = 0;
  return found;
}
FAKE_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  fakegpu::Count("cudaStreamSynchronize");
  if (fakegpu::Captures(stream)) return fakegpu::NotInCapture();
  fakegpu::Finish(stream);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                         unsigned) {
  using namespace fakegpu;
  const Recorded& last = Last(event);
  if (last.capture != 0) {
    const GraphGuard guard(graph_lock);
    if (!capturing || last.capture != captures)
      return Say(cudaErrorCapturedEvent);
    captured.insert(stream);
    return cudaSuccess;
  }
  if (Captures(stream))
    return last.never ? cudaSuccess : Say(cudaErrorStreamCaptureIsolation);
  Wait(stream, last.point);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                           cudaStreamCallback_t call,
                                           void* with, unsigned) {
  fakegpu::Note(stream, [=] { call(stream, cudaSuccess, with); });
  return cudaSuccess;
}
FAKE_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call,
                                        void* with) {
  fakegpu::Note(stream, [=] { call(with); });
  return cudaSuccess;
}

FAKE_API cudaError_t cudaEventCreate(cudaEvent_t* to) {
  *to = reinterpret_cast<cudaEvent_t>(new fakegpu::Event{});
  return cudaSuccess;
}
FAKE_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, unsigned) {
  return cudaEventCreate(to);
}
FAKE_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<fakegpu::Event*>(event);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  fakegpu::Count("cudaEventRecord");
  const auto record = std::make_shared<fakegpu::Recorded>();
  reinterpret_cast<fakegpu::Event*>(event)->last = record;
  record->never = false;
  if (fakegpu::Captures(stream)) {
    record->capture = fakegpu::captures;
    return cudaSuccess;
  }
  // From here on another stream may have the memory that this one has freed.
  record->point =
      fakegpu::Submit(stream, [record] { record->ms = fakegpu::NowMs(); });
  return cudaSuccess;
}
FAKE_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event,
                                              cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
FAKE_API cudaError_t cudaEventQuery(cudaEvent_t event) {
  fakegpu::Recorded& last = fakegpu::Last(event);
  if (last.capture != 0) return fakegpu::Say(cudaErrorCapturedEvent);
  return fakegpu::Asked(last.point, last.asked);
}
FAKE_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  fakegpu::Count("cudaEventSynchronize");
  if (fakegpu::Capturing()) return fakegpu::NotInCapture();
  fakegpu::RunTo(fakegpu::Last(event).point);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaEventElapsedTime(float* to, cudaEvent_t begin,
                                          cudaEvent_t end) {
  const fakegpu::Recorded &from = fakegpu::Last(begin),
                          &until = fakegpu::Last(end);
  if (from.capture != 0 || until.capture != 0)
    return fakegpu::Say(cudaErrorCapturedEvent);
  if (!fakegpu::Done(from.point) || !fakegpu::Done(until.point))
    return fakegpu::Say(cudaErrorNotReady);
  *to = static_cast<float>(until.ms - from.ms);
  return cudaSuccess;
}

FAKE_API cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t,
                                      cudaStream_t) {
  return fakegpu::Launched();
}
FAKE_API cudaError_t __cudaLaunchKernel(void*, dim3, dim3, void**, size_t,
                                        cudaStream_t) {
  return fakegpu::Launched();
}
FAKE_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*,
                                         void**) {
  return fakegpu::Launched();
}
FAKE_API unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) {
  return 0;
}
FAKE_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                                size_t* shared, void** stream) {
  *grid = *block = dim3(1);
  *shared = 0;
  *stream = nullptr;
  return cudaSuccess;
}
FAKE_API cudaError_t __cudaGetKernel(void** to, const void* function) {
  *to = const_cast<void*>(function);
  return cudaSuccess;
}
FAKE_API char __cudaInitModule(void**) { return 1; }
FAKE_API void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
FAKE_API void __cudaRegisterFatBinaryEnd(void**) {}
FAKE_API void __cudaUnregisterFatBinary(void**) {}
FAKE_API void __cudaRegisterFunction(void**, const char*, char*, const char*,
                                     int, void*, void*, void*, void*, int*) {}
FAKE_API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t,
                                int, int) {}
FAKE_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to,
                                           const void*) {
  std::memset(to, 0, sizeof *to);
  to->maxThreadsPerBlock = 1024;
  to->binaryVersion = to->ptxVersion = 80;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
FAKE_API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t,
                                                     cudaFuncAttribute, int,
                                                     int) {
  return cudaSuccess;
}
FAKE_API cudaError_t cudaLibraryLoadData(cudaLibrary_t* to, const void*,
                                         cudaJitOption*, void**, unsigned,
                                         cudaLibraryOption*, void**, unsigned) {
  return fakegpu::Made(to);
}
FAKE_API cudaError_t cudaLibraryGetKernel(cudaKernel_t* to, cudaLibrary_t,
                                          const char*) {
  return fakegpu::Made(to);
}
FAKE_API cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }
FAKE_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* to, const void*, int, size_t, unsigned) {
  *to = 2;
  return cudaSuccess;
}

FAKE_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                            cudaStreamCaptureMode) {
  using namespace fakegpu;
  SettleAll();
  const GraphGuard guard(graph_lock);
  captured = {stream};
  graph = std::make_shared<Graph>();
  ++captures;
  capturing = true;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamBeginCaptureToGraph(
    cudaStream_t stream, cudaGraph_t, const cudaGraphNode_t*,
    const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(stream, mode);
}
FAKE_API cudaError_t cudaStreamEndCapture(cudaStream_t stream,
                                          cudaGraph_t* to) {
  // What was freed after its last work is filled at the end of a launch.
  if (fakegpu::Captures(stream)) fakegpu::Submit(stream, [] {});
  using namespace fakegpu;
  const GraphGuard guard(graph_lock);
  capturing = false;
  *to = reinterpret_cast<cudaGraph_t>(new Handle(graph));
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                           cudaStreamCaptureStatus* to) {
  *to = fakegpu::Captures(stream) ? cudaStreamCaptureStatusActive
                                  : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, cudaStreamCaptureStatus* status,
    unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes,
    const cudaGraphEdgeData** edges, size_t* count) {
  cudaStreamIsCapturing(stream, status);
  if (id != nullptr) *id = fakegpu::captures;
  if (graph != nullptr) fakegpu::Made(graph);
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamUpdateCaptureDependencies(
    cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
    unsigned) {
  return cudaSuccess;
}
FAKE_API cudaError_t
cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
FAKE_API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* to,
                                                   cudaGraph_t from,
                                                   unsigned long long) {
  *to =
      reinterpret_cast<cudaGraphExec_t>(new fakegpu::Handle(fakegpu::Of(from)));
  return cudaSuccess;
}
FAKE_API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec,
                                     cudaStream_t stream) {
  for (const auto& work : fakegpu::Of(exec)->works)
    fakegpu::Submit(stream, work);
  return fakegpu::Launched();
}
FAKE_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<fakegpu::Handle*>(graph);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<fakegpu::Handle*>(exec);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*,
                                       size_t* count) {
  *count = 1;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t,
                                                  cudaGraphNode_t*,
                                                  cudaGraphEdgeData*,
                                                  size_t* count) {
  *count = 0;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*,
                                            unsigned) {
  return cudaSuccess;
}
FAKE_API cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t,
                                      const cudaGraphNode_t*,
                                      const cudaGraphEdgeData*, size_t,
                                      cudaGraphNodeParams*) {
  return fakegpu::Say(cudaErrorNotSupported);
}
FAKE_API cudaError_t cudaGraphConditionalHandleCreate(
    cudaGraphConditionalHandle*, cudaGraph_t, unsigned, unsigned) {
  return fakegpu::Say(cudaErrorNotSupported);
}
