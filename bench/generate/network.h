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
// Every forward op keeps the tensors that its backward needs; Finish adds the
// backward ops in reverse order. A gradient with two sources is summed: in
// place if nothing else holds it, otherwise into a new storage. Residual
// additions and views pass gradients on without an op, as in frameworks, so
// storages are shared. The program drops a module's own storages when the
// module returns, and its result when the next module returns (`release_op`),
// like a program's variables.
//
// An op takes 2 us, its arithmetic at 150 TFLOP/s or its memory traffic at 1.5
// TB/s, whichever is longest. A parameter takes 2 bytes as a weight, 12 in the
// optimizer (both static) and 2 as a gradient, which is made in the backward
// and freed in the optimizer.
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
  // Leaves the module with its result.
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
  // Linear layer or convolution. Its backward is one op for the input's
  // gradient and one for the weights', which reads the input.
  Tensor Linear(Tensor x, const Weighted& op);
  // Product of two activations; both are kept for the backward.
  Tensor Product(const char* name, Tensor a, Tensor b, int64_t out_bytes,
                 int64_t flops);
  // Fused attention: one op that keeps its inputs, its output and the row sums.
  Tensor Attention(Tensor q, Tensor k, Tensor v, int64_t flops);

  struct Elementwise {
    const char* name = "aten.gelu.default";
    int64_t out_bytes = 0;  // 0: the input's
    Keep keep = Keep::kInput;
    int64_t statistics_bytes = 0;  // of a second output, which is kept
    int64_t parameter_bytes = 0;
  };
  // Activation, normalisation, pooling, softmax.
  Tensor Map(Tensor x, const Elementwise& op);
  // The same in place on the storage of x, which no backward may need.
  Tensor MapInPlace(const char* name, Tensor x, Keep keep);
  // Keeps a mask; can run again only from a stored generator state.
  Tensor Dropout(Tensor x);
  Tensor Add(Tensor a, Tensor b);
  // Adds b to a in place.
  Tensor AddInPlace(Tensor a, Tensor b);
  Tensor Concat(Tensor a, Tensor b);
  // Returns equal parts, which are views.
  std::vector<Tensor> Split(Tensor x, int parts);
  Tensor Reshape(Tensor x);
  // A collective that receives as many bytes as it sends.
  Tensor Exchange(Tensor x);
  // Any op: reads `inputs`, keeps the tensors `kept` and takes `time_ns` in the
  // forward.
  Tensor Custom(const std::vector<Tensor>& inputs, int64_t out_bytes,
                const std::vector<Tensor>& kept, bool keeps_output,
                int64_t time_ns, int64_t workspace_bytes);

  int64_t Bytes(Tensor t) const { return tensors_[t].bytes; }

  // Ends the forward with a `once` op that starts the backward.
  void Loss(Tensor logits);

  // Adds the backward and the optimizer. Call once, after Loss.
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
    StorageId returned = kNone;  // result of the previous module
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
  // Returns the gradient of t, or kNone if it has none.
  StorageId Gradient(Tensor t) const { return tensors_[t].gradient; }
  // Gives a gradient to t, adding it to the one that t has.
  void Give(Tensor t, StorageId gradient, bool shared);
  // Returns a new storage for the gradient of t, or kNone if none is needed.
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
