// SPDX-License-Identifier: Apache-2.0
//
// A training loop in plain CUDA C++ that keeps within a memory budget, using no
// framework but only the C ABI of libreprise_agent.so.
//
//   nvcc -O2 -std=c++20 --extended-lambda -I profiler/include
//     tests/gpu/train_mlp.cu -o train_mlp -L build/lib -lreprise_agent
//   reprise run -- ./train_mlp --budget 0.5x
//
// The network is a chain, x[l] = tanh(x[l-1] W[l]), with a squared error at the
// end, hand-written gradients and plain SGD. The point is the shape of the
// loop:
//
//   1. ops are a list, each with the storages it reads and writes;
//   2. a few steps run in list order, one of them inside a window;
//   3. the list is sent to the planner as a step graph;
//   4. from then on the loop runs the plan's schedule: entries e >= 0 run op e,
//      e < 0 free storage -e-1;
//   5. one step runs both ways, and the gradients must be equal bit for bit.
//
// The same file compiles as C++ (g++ -x c++) with loops as kernels, which is
// how it is tested without a GPU. It has not run on a GPU yet.
#include <reprise_agent.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

// ---- The device ----

#ifdef __CUDACC__
#define DEVICE __device__
#define CHECK(call)                                                       \
  do {                                                                    \
    if (const cudaError_t error = (call); error != cudaSuccess) {         \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (false)

template <typename Body>
__global__ void Kernel(size_t n, Body body) {
  const size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  if (i < n) body(i);
}
template <typename Body>
void ForEach(size_t n, Body body) {
  Kernel<<<static_cast<unsigned>((n + 255) / 256), 256>>>(n, body);
}
void* DeviceAlloc(size_t bytes) {
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, bytes));
  return memory;
}
void Synchronize() { CHECK(cudaDeviceSynchronize()); }
void ToHost(void* to, const void* from, size_t bytes) {
  CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}
void ToDevice(void* to, const void* from, size_t bytes) {
  CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
constexpr int kDevice = 0;
#else
#define DEVICE
template <typename Body>
void ForEach(size_t n, Body body) {
  for (size_t i = 0; i < n; ++i) body(i);
}
void* DeviceAlloc(size_t bytes) { return std::malloc(bytes); }
void Synchronize() {}
void ToHost(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
void ToDevice(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
constexpr int kDevice = -1;
#endif

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// ---- The layer, cell by cell ----

void MatMul(const float* a, const float* w, float* c, size_t cells, int width) {
  ForEach(cells, [=] DEVICE(size_t i) {
    const float* row = a + i / width * width;
    float sum = 0;
    for (int k = 0; k < width; ++k) sum += row[k] * w[k * width + i % width];
    c[i] = sum;
  });
}
void MatMulTransposed(const float* b, const float* w, float* c, size_t cells,
                      int width) {
  ForEach(cells, [=] DEVICE(size_t i) {
    const float* row = b + i / width * width;
    const float* column = w + i % width * width;
    float sum = 0;
    for (int k = 0; k < width; ++k) sum += row[k] * column[k];
    c[i] = sum;
  });
}
void WeightGradient(const float* a, const float* b, float* c, int width,
                    int batch) {
  ForEach(size_t(width) * width, [=] DEVICE(size_t i) {
    float sum = 0;
    for (int k = 0; k < batch; ++k)
      sum += a[k * width + i / width] * b[k * width + i % width];
    c[i] = sum;
  });
}
void Tanh(const float* a, float* c, size_t cells) {
  ForEach(cells, [=] DEVICE(size_t i) { c[i] = tanhf(a[i]); });
}
void TanhBackward(const float* a, const float* b, float* c, size_t cells) {
  ForEach(cells, [=] DEVICE(size_t i) { c[i] = b[i] * (1.0f - a[i] * a[i]); });
}
void LossBackward(const float* a, const float* target, float* c, size_t cells) {
  ForEach(cells, [=] DEVICE(size_t i) {
    c[i] = 2.0f * (a[i] - target[i]) / float(cells);
  });
}
void Descend(const float* gradient, float* w, size_t cells) {
  ForEach(cells, [=] DEVICE(size_t i) { w[i] -= 0.5f * gradient[i]; });
}

// ---- Storages and ops ----

struct Storage {
  std::string name;
  int64_t bytes = 0;
  const char* category = "CATEGORY_ACTIVATION";
  float* memory = nullptr;  // null: freed
};

struct Op {
  std::string name, module;
  const char *phase, *kind;
  std::vector<int> reads, writes;
  std::function<void()> run;
  int64_t time_ns = 0;
  uint32_t interned = 0;
};

// Keeps freed blocks by size, as training allocators do, and reports every
// allocation and free to the agent.
class Allocator {
 public:
  float* Get(int64_t bytes) {
    std::vector<void*>& kept = kept_[bytes];
    void* memory = nullptr;
    if (kept.empty()) {
      memory = DeviceAlloc(static_cast<size_t>(bytes));
    } else {
      memory = kept.back();
      kept.pop_back();
    }
    alive_ += bytes;
    peak_ = alive_ > peak_ ? alive_ : peak_;
    Report(memory, bytes, REPRISE_ALLOC);
    return static_cast<float*>(memory);
  }
  void Put(float* memory, int64_t bytes) {
    kept_[bytes].push_back(memory);
    alive_ -= bytes;
    Report(memory, -bytes, REPRISE_FREE);
  }
  void StartStep() { peak_ = alive_; }
  int64_t peak() const { return peak_; }
  int64_t alive() const { return alive_; }

 private:
  static void Report(void* memory, int64_t bytes, uint32_t what) {
    if ((reprise_window_kinds() & REPRISE_KIND_ALLOCS) == 0) return;
    reprise_alloc(reinterpret_cast<uint64_t>(memory), bytes, kDevice, 0, what,
                  0);
  }
  std::map<int64_t, std::vector<void*>> kept_;
  int64_t alive_ = 0, peak_ = 0;
};

class Network {
 public:
  Network(int layers, int width, int batch)
      : layers_(layers), width_(width), batch_(batch) {
    const int64_t activation = int64_t{batch} * width * 4;
    const int64_t weight = int64_t{width} * width * 4;
    for (int l = 0; l < layers; ++l) weights_.push_back(allocator.Get(weight));
    input_ = allocator.Get(activation);
    target_ = allocator.Get(activation);
    Fill();
    static_bytes = allocator.alive();
    BuildOps(activation, weight);
  }

  // Runs a schedule. With `report`, records every op with the agent and its
  // time.
  void Run(const std::vector<int>& schedule, uint64_t step, bool report) {
    for (const int entry : schedule) {
      if (entry < 0) {
        Storage& storage = storages[static_cast<size_t>(-entry - 1)];
        if (storage.memory == nullptr) continue;
        allocator.Put(storage.memory, storage.bytes);
        storage.memory = nullptr;
        continue;
      }
      Op& op = ops[static_cast<size_t>(entry)];
      const uint64_t id = AgentOp(step, entry);
      if (report) reprise_op_begin(id, op.interned, 0, 0, -1, 0);
      for (const int written : op.writes) {
        Storage& storage = storages[static_cast<size_t>(written)];
        if (storage.memory == nullptr)
          storage.memory = allocator.Get(storage.bytes);
      }
      const int64_t begin = NowNs();
      op.run();
      if (report) {
        Synchronize();  // for the host's clock, if there is no CUPTI
        op.time_ns = NowNs() - begin;
        reprise_op_end(id);
      }
    }
    Synchronize();
  }

  // Returns the schedule without a plan: list order, with every storage freed
  // after its last reader.
  std::vector<int> PlainSchedule() const {
    std::vector<int> last(storages.size(), -1), schedule;
    for (size_t i = 0; i < ops.size(); ++i) {
      for (const int s : ops[i].writes) last[size_t(s)] = int(i);
      for (const int s : ops[i].reads) last[size_t(s)] = int(i);
    }
    for (size_t i = 0; i < ops.size(); ++i) {
      schedule.push_back(int(i));
      for (size_t s = 0; s < last.size(); ++s)
        if (last[s] == int(i)) schedule.push_back(-int(s) - 1);
    }
    return schedule;
  }

  std::vector<float> Weights() const {
    std::vector<float> all;
    const size_t each = size_t(width_) * width_;
    for (const float* weight : weights_) {
      all.resize(all.size() + each);
      ToHost(all.data() + all.size() - each, weight, each * 4);
    }
    return all;
  }
  void SetWeights(const std::vector<float>& all) {
    const size_t each = size_t(width_) * width_;
    for (size_t l = 0; l < weights_.size(); ++l)
      ToDevice(weights_[l], all.data() + l * each, each * 4);
  }

  // Returns the agent's id for one execution of an op.
  static uint64_t AgentOp(uint64_t step, int op) {
    return (step + 1) << 32 | static_cast<uint64_t>(op);
  }

  std::string Json(uint64_t captured, int64_t peak, int64_t step_ns) const;

  Allocator allocator;
  std::vector<Storage> storages;
  std::vector<Op> ops;
  int64_t static_bytes = 0;

 private:
  void Fill() {
    std::vector<float> values(size_t(width_) * width_);
    uint32_t state = 1;
    const auto next = [&state] {
      state = state * 1664525u + 1013904223u;
      return static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    };
    for (float* weight : weights_) {
      for (float& value : values)
        value = next() * 1.5f / std::sqrt(static_cast<float>(width_));
      ToDevice(weight, values.data(), values.size() * 4);
    }
    values.resize(size_t(batch_) * width_);
    for (float* memory : {input_, target_}) {
      for (float& value : values) value = next() * 0.5f;
      ToDevice(memory, values.data(), values.size() * 4);
    }
  }

  int NewStorage(std::string name, int64_t bytes, const char* category) {
    storages.push_back({std::move(name), bytes, category, nullptr});
    return static_cast<int>(storages.size()) - 1;
  }
  // Called when an op runs, because a recomputed storage has a new address.
  float* At(int storage) const {
    return storage < 0 ? input_ : storages[static_cast<size_t>(storage)].memory;
  }
  void Add(const std::string& name, int layer, const char* phase,
           const char* kind, std::vector<int> reads, std::vector<int> writes,
           std::function<void()> run) {
    std::vector<int> known;
    for (const int read : reads)
      if (read >= 0) known.push_back(read);  // the input is static
    Op op{name,          "layers." + std::to_string(layer),
          phase,         kind,
          known,         writes,
          std::move(run)};
    op.interned = reprise_intern(name.data(), name.size());
    ops.push_back(std::move(op));
  }
  void BuildOps(int64_t activation, int64_t weight);

  int layers_, width_, batch_;
  std::vector<float*> weights_;
  float *input_ = nullptr, *target_ = nullptr;
};

void Network::BuildOps(int64_t activation, int64_t weight) {
  const int width = width_, batch = batch_;
  const size_t cells = size_t(batch) * width, square = size_t(width) * width;
  const char *pure = "OP_KIND_PURE", *once = "OP_KIND_ONCE";
  const auto name = [](const char* of, int layer) {
    return of + std::to_string(layer);
  };
  std::vector<int> x{-1};  // x[0] is the input
  for (int l = 1; l <= layers_; ++l) {
    const int from = x.back();
    const int z = NewStorage(name("z", l), activation, "CATEGORY_ACTIVATION");
    const int out = NewStorage(name("x", l), activation, "CATEGORY_ACTIVATION");
    const float* w = weights_[size_t(l - 1)];
    Add("mm", l, "PHASE_FORWARD", pure, {from}, {z},
        [=, this] { MatMul(At(from), w, At(z), cells, width); });
    Add("tanh", l, "PHASE_FORWARD", pure, {z}, {out},
        [=, this] { Tanh(At(z), At(out), cells); });
    x.push_back(out);
  }
  int g = NewStorage(name("g", layers_), activation, "CATEGORY_GRADIENT");
  Add("loss_backward", layers_, "PHASE_BACKWARD", once, {x.back()}, {g},
      [=, this, last = x.back()] {
        LossBackward(At(last), target_, At(g), cells);
      });
  std::vector<int> gradients(size_t(layers_) + 1);
  for (int l = layers_; l >= 1; --l) {
    const int dz = NewStorage(name("dz", l), activation, "CATEGORY_GRADIENT");
    const int dw = NewStorage(name("dw", l), weight, "CATEGORY_GRADIENT");
    gradients[size_t(l)] = dw;
    const int before = x[size_t(l - 1)], out = x[size_t(l)];
    const float* w = weights_[size_t(l - 1)];
    Add("tanh_backward", l, "PHASE_BACKWARD", pure, {out, g}, {dz},
        [=, this] { TanhBackward(At(out), At(g), At(dz), cells); });
    Add("mm_backward_weight", l, "PHASE_BACKWARD", pure, {before, dz}, {dw},
        [=, this] {
          WeightGradient(At(before), At(dz), At(dw), width, batch);
        });
    if (l == 1) continue;
    const int next =
        NewStorage(name("g", l - 1), activation, "CATEGORY_GRADIENT");
    Add("mm_backward_input", l, "PHASE_BACKWARD", pure, {dz}, {next},
        [=, this] { MatMulTransposed(At(dz), w, At(next), cells, width); });
    g = next;
  }
  // Last in the step: a forward op that runs again needs the unchanged weights.
  for (int l = 1; l <= layers_; ++l) {
    float* w = weights_[size_t(l - 1)];
    const int dw = gradients[size_t(l)];
    Add("sgd", l, "PHASE_OPTIMIZER", once, {dw}, {},
        [=, this] { Descend(At(dw), w, square); });
  }
}

// ---- To the planner and back ----

std::string Network::Json(uint64_t captured, int64_t peak,
                          int64_t step_ns) const {
  const auto list = [](const std::vector<int>& values) {
    std::string text;
    for (const int value : values)
      text += (text.empty() ? "" : ",") + std::to_string(value);
    return "[" + text + "]";
  };
  std::string json =
      "{\"name\":\"train_mlp\",\"flavour\":\"cpp\","
      "\"static_bytes\":" +
      std::to_string(static_bytes) +
      ",\"measured_peak_bytes\":" + std::to_string(peak) +
      ",\"measured_step_ns\":" + std::to_string(step_ns) + ",\"storages\":[";
  for (size_t i = 0; i < storages.size(); ++i)
    json += std::string(i == 0 ? "" : ",") + "{\"id\":" + std::to_string(i) +
            ",\"bytes\":" + std::to_string(storages[i].bytes) + ",\"name\":\"" +
            storages[i].name + "\",\"category\":\"" + storages[i].category +
            "\"}";
  json += "],\"ops\":[";
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    json += std::string(i == 0 ? "" : ",") + "{\"id\":" + std::to_string(i) +
            ",\"name\":\"" + op.name + "\",\"module\":\"" + op.module +
            "\",\"phase\":\"" + op.phase + "\",\"kind\":\"" + op.kind +
            "\",\"time_ns\":" + std::to_string(op.time_ns) +
            ",\"reads\":" + list(op.reads) + ",\"writes\":" + list(op.writes) +
            ",\"agent_ops\":[\"" + std::to_string(AgentOp(captured, int(i))) +
            "\"]}";
  }
  return json + "]}";
}

// Reads the numbers of "schedule":[...] from a plan's JSON; proto3 writes
// 64-bit integers as strings.
std::vector<int> ReadSchedule(const std::string& json) {
  std::vector<int> schedule;
  size_t at = json.find("\"schedule\":[");
  if (at == std::string::npos) return schedule;
  const char* next = json.c_str() + at + 12;
  while (*next != ']' && *next != 0) {
    next += *next == '"';
    char* end = nullptr;
    schedule.push_back(static_cast<int>(std::strtol(next, &end, 10)));
    if (end == next) return {};
    next = end + (*end == '"');
    next += *next == ',';
  }
  return schedule;
}

// Returns whether every entry of the schedule names an op or storage of the
// network.
bool IsRunnable(const Network& network, const std::vector<int>& schedule) {
  for (const int entry : schedule) {
    const size_t limit =
        entry >= 0 ? network.ops.size() : network.storages.size();
    if (size_t(entry >= 0 ? entry : -entry - 1) >= limit) return false;
  }
  return !schedule.empty();
}

struct Options {
  int layers = 24, width = 256, batch = 512, steps = 20;
  std::string budget;
};

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--layers") options.layers = std::atoi(value.c_str());
    if (key == "--width") options.width = std::atoi(value.c_str());
    if (key == "--batch") options.batch = std::atoi(value.c_str());
    if (key == "--steps") options.steps = std::atoi(value.c_str());
    if (key == "--budget") options.budget = value;
  }
  constexpr uint64_t kCaptured = 3;
  reprise_config config = {};
  config.struct_size = sizeof config;
  config.labels = "name=train_mlp\n";
  reprise_start(&config);
  reprise_caps caps = {};
  caps.struct_size = sizeof caps;
  if (reprise_capabilities(&caps) != REPRISE_OK)
    std::printf("agent: %s\n", caps.why);

  Network network(options.layers, options.width, options.batch);
  const std::vector<int> plain = network.PlainSchedule();
  std::vector<int> schedule = plain;
  uint64_t plan_id = 0;
  int64_t plain_ns = 0;
  for (uint64_t step = 0; step < uint64_t(options.steps); ++step) {
    const bool capture = step == kCaptured && !options.budget.empty();
    reprise_step(step);
    if (capture) reprise_window_begin(0);
    network.allocator.StartStep();
    const int64_t begin = NowNs();
    network.Run(schedule, step, capture);
    const int64_t step_ns = NowNs() - begin;
    reprise_step_report report = {};
    report.struct_size = sizeof report;
    report.flags = (plan_id != 0 ? uint32_t{REPRISE_STEP_PLANNED} : 0u) |
                   (capture ? uint32_t{REPRISE_STEP_WINDOW} : 0u);
    report.step = step;
    report.plan_id = plan_id;
    report.step_ns = uint64_t(step_ns);
    report.peak_bytes = uint64_t(network.allocator.peak());
    reprise_step_done(&report);
    std::printf("step %llu: %.2f ms, peak %.1f MiB%s\n",
                static_cast<unsigned long long>(step), double(step_ns) / 1e6,
                double(network.allocator.peak()) / (1 << 20),
                plan_id != 0 ? ", planned" : "");
    if (step == kCaptured - 1) plain_ns = step_ns;
    if (!capture) continue;

    reprise_window_end();
    reprise_flush(2000);  // waits for the times of the last kernels
    const std::string json =
        network.Json(step, network.allocator.peak(), plain_ns);
    reprise_want want = {};
    want.struct_size = sizeof want;
    want.budget = options.budget.c_str();
    want.capabilities = "graph";
    want.static_bytes = uint64_t(network.static_bytes);
    uint64_t graph = 0;
    reprise_status status =
        reprise_graph_submit(json.data(), json.size(), &want, &graph);
    reprise_plan plan = {};
    plan.struct_size = sizeof plan;
    if (status == REPRISE_PENDING || status == REPRISE_OK)
      status = reprise_plan_wait(graph, 0, 60000, &plan);
    if (status != REPRISE_OK) {
      std::printf("no plan: %s; training goes on without one\n", plan.why);
      continue;
    }
    const std::vector<int> planned = ReadSchedule(
        std::string(static_cast<const char*>(plan.json), plan.json_bytes));
    const uint64_t offered = plan.plan_id;
    std::printf("plan %016llx: peak %.1f MiB predicted\n",
                static_cast<unsigned long long>(offered),
                double(plan.predicted_peak) / (1 << 20));
    reprise_plan_release(&plan);
    if (!IsRunnable(network, planned)) {
      std::printf("the plan names ops that are not there: not used\n");
      reprise_plan_state(offered, REPRISE_PLAN_REFUSED, 0);
      continue;
    }
    // The same step both ways: the weights afterwards must be the same bits.
    const std::vector<float> before = network.Weights();
    network.Run(plain, step, false);
    const std::vector<float> expected = network.Weights();
    network.SetWeights(before);
    network.Run(planned, step, false);
    const bool equal = network.Weights() == expected;
    reprise_verify_report verify = {};
    verify.struct_size = sizeof verify;
    verify.flags = equal ? REPRISE_VERIFY_BITWISE : REPRISE_VERIFY_FAILED;
    verify.step = step;
    verify.plan_id = offered;
    verify.checked = uint32_t(options.layers);
    verify.differing = equal ? 0 : 1;
    reprise_verify(&verify);
    std::printf("weights after a planned step: %s\n",
                equal ? "equal bit for bit" : "DIFFERENT, plan not used");
    reprise_plan_state(offered,
                       equal ? REPRISE_PLAN_APPLIED : REPRISE_PLAN_REFUSED, 0);
    if (!equal) continue;
    schedule = planned;
    plan_id = offered;
  }
  reprise_stop();
  return 0;
}
