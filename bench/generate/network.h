// SPDX-License-Identifier: Apache-2.0
//
// Records a forward pass and derives the training step from it, as a
// framework's autograd does: the builder behind `generate.h`.
//
//   Network net({...});
//   net.Begin("layers.0");
//   Tensor h = net.Linear(x, {.out_bytes = ..., .flops = ...});
//   h = net.MapInPlace("aten.relu_", h, Keep::kOutput);
//   h = net.End(h);
//   net.Loss(h, ...);
//   StepGraph graph = net.Finish();
//
// Every forward op leaves what its backward needs; Finish runs these in
// reverse. A gradient that has two sources is summed: in place where nobody
// else holds it, else into a new storage. Residual additions and views pass
// gradients on without an op, as frameworks do, so storages are shared. A
// module's own storages are let go of when it returns, its result when the
// next module does (`release_op`): what the program's variables do.
//
// Time of an op: 2 us, or its arithmetic at 150 TFLOP/s, or its traffic at
// 1.5 TB/s, whichever is longest. Parameters take 2 bytes each in weights, 12
// in the optimizer (static) and 2 in gradients, which are born in the
// backward and die in the optimizer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/model/random.h"
#include "planner/model/step_graph.h"

namespace reprise::planner {

// Handle of a tensor of the forward pass.
using Tensor = int32_t;

// What the backward of an elementwise op reads besides the gradient.
enum class Keep : uint8_t { kNothing, kInput, kOutput };

class Network {
 public:
  struct Options {
    std::string name;
    uint64_t seed = 1;
    int noise_permille = 0;
  };
  explicit Network(const Options& options);

  // ---- Modules ----

  // Enters a module; paths nest: "layers.3" then "mlp" is "layers.3.mlp".
  void Begin(const std::string& module);
  // Leaves it with its result.
  Tensor End(Tensor result);

  // ---- Ops ----

  // The input batch: written by a `once` op, needs no gradient.
  Tensor Input(int64_t bytes);

  struct Weighted {
    const char* name = "aten.mm.default";
    int64_t out_bytes = 0;
    int64_t flops = 0;
    int64_t parameter_bytes = 0;
    int64_t workspace_bytes = 0;
  };
  // Linear layer or convolution: backward is one op for the input's gradient
  // and one for the weights', which reads the input.
  Tensor Linear(Tensor x, const Weighted& op);
  // Product of two activations; both are kept.
  Tensor Product(const char* name, Tensor a, Tensor b, int64_t out_bytes,
                 int64_t flops);
  // Fused attention: one op that keeps its inputs, its output and row sums.
  Tensor Attention(Tensor q, Tensor k, Tensor v, int64_t flops);

  struct Elementwise {
    const char* name = "aten.gelu.default";
    int64_t out_bytes = 0;  // 0: as the input
    Keep keep = Keep::kInput;
    int64_t statistics_bytes = 0;  // a second output, kept
    int64_t parameter_bytes = 0;
  };
  // Activation, normalisation, pooling, softmax.
  Tensor Map(Tensor x, const Elementwise& op);
  // The same onto the storage of x, which nobody may have kept.
  Tensor MapInPlace(const char* name, Tensor x, Keep keep);
  // Keeps a mask; runs again only from stored generator state.
  Tensor Dropout(Tensor x);
  Tensor Add(Tensor a, Tensor b);
  // Onto the storage of a.
  Tensor AddInPlace(Tensor a, Tensor b);
  Tensor Concat(Tensor a, Tensor b);
  // Equal parts, without memory of their own.
  std::vector<Tensor> Split(Tensor x, int parts);
  Tensor Reshape(Tensor x);
  // A collective: as many bytes arrive as leave.
  Tensor Exchange(Tensor x);
  // Any op: reads `inputs`, keeps some of them, costs `time_ns` forward.
  Tensor Custom(const std::vector<Tensor>& inputs, int64_t out_bytes,
                const std::vector<Tensor>& kept, bool keeps_output,
                int64_t time_ns, int64_t workspace_bytes);

  int64_t Bytes(Tensor t) const { return tensors_[t].bytes; }

  // The end of the forward: a `once` op that starts the backward.
  void Loss(Tensor logits);

  // Adds backward and optimizer. Call once, after Loss.
  StepGraph Finish() &&;

 private:
  static constexpr StorageId kNone = -1;

  struct TensorData {
    StorageId storage = kNone;
    int64_t bytes = 0;
    bool wants_gradient = true;
    StorageId gradient = kNone;
    bool gradient_shared = false;  // another tensor may hold it too
  };
  struct Scope {
    std::string path;
    std::vector<StorageId> made;
    StorageId returned = kNone;  // result of the module before
  };
  struct Parameters {
    std::string module;
    int64_t bytes = 0;
    std::vector<StorageId> gradients;
  };

  const std::string& module() const { return scopes_.back().path; }
  Tensor NewTensor(StorageId storage, int64_t bytes, bool wants_gradient);
  StorageId NewStorage(int64_t bytes, Category category, const char* what);
  Op& AddOp(std::string name, std::vector<StorageId> reads,
            std::vector<StorageId> writes, int64_t flops);
  int64_t Time(int64_t flops, int64_t traffic_bytes);
  void Save(StorageId storage);

  // Registers the backward of the op just recorded.
  void OnBackward(std::function<void()> backward);
  // The gradient of t, or kNone where nothing asked for one.
  StorageId Gradient(Tensor t) const { return tensors_[t].gradient; }
  // Hands a gradient to t, summing where there is one.
  void Give(Tensor t, StorageId gradient, bool shared);
  // A new storage for the gradient of t, or kNone where none is wanted.
  StorageId MakeGradient(Tensor t);
  void Optimize();

  StepGraph graph_;
  std::vector<TensorData> tensors_;
  std::vector<Scope> scopes_;
  std::vector<std::function<void()>> backward_;
  std::vector<Parameters> parameters_;
  Phase phase_ = Phase::kForward;
  Random random_;
  int noise_permille_;
};

}  // namespace reprise::planner
