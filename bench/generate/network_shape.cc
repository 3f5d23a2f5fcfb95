// SPDX-License-Identifier: Apache-2.0
//
// The network's ops that only join, split and move tensors, the custom op, and
// everything after the forward: loss, backward, optimizer.
#include <algorithm>
#include <cassert>
#include <utility>

#include "bench/generate/network.h"

namespace reprise::planner {

Tensor Network::Add(Tensor a, Tensor b) {
  const int64_t bytes = tensors_[a].bytes;
  const StorageId s = NewStorage(bytes, Category::kActivation, "sum");
  AddOp("aten.add.Tensor", {tensors_[a].storage, tensors_[b].storage}, {s}, 0);
  const Tensor out = NewTensor(s, bytes, true);
  OnBackward([this, a, b, out] {
    Give(a, Gradient(out), true);
    Give(b, Gradient(out), true);
  });
  return out;
}

Tensor Network::AddInPlace(Tensor a, Tensor b) {
  const StorageId s = tensors_[a].storage;
  assert(!graph_.storages[s].saved_for_backward);
  AddOp("aten.add_.Tensor", {s, tensors_[b].storage}, {}, 0).mutates = {s};
  const Tensor out = NewTensor(s, tensors_[a].bytes, true);
  OnBackward([this, a, b, out] {
    Give(a, Gradient(out), true);
    Give(b, Gradient(out), true);
  });
  return out;
}

Tensor Network::Concat(Tensor a, Tensor b) {
  const int64_t bytes = tensors_[a].bytes + tensors_[b].bytes;
  const StorageId s = NewStorage(bytes, Category::kActivation, "cat");
  AddOp("aten.cat.default", {tensors_[a].storage, tensors_[b].storage}, {s}, 0);
  const Tensor out = NewTensor(s, bytes, true);
  OnBackward([this, a, b, out] {
    const StorageId g = Gradient(out);
    if (g == kNone) return;
    for (const Tensor part : {a, b}) {
      Op& view = AddOp("aten.slice.Tensor", {g}, {}, 0);
      view.kind = OpKind::kView;
      view.time_ns = 0;
      Give(part, g, true);
    }
  });
  return out;
}

std::vector<Tensor> Network::Split(Tensor x, int parts) {
  const StorageId s = tensors_[x].storage;
  Op& view = AddOp("aten.split.Tensor", {s}, {}, 0);
  view.kind = OpKind::kView;
  view.time_ns = 0;
  std::vector<Tensor> out;
  for (int i = 0; i < parts; ++i) {
    out.push_back(
        NewTensor(s, tensors_[x].bytes / parts, tensors_[x].wants_gradient));
  }
  OnBackward([this, x, out] {
    std::vector<StorageId> reads;
    for (const Tensor part : out) {
      if (Gradient(part) != kNone) reads.push_back(Gradient(part));
    }
    if (reads.empty()) return;
    const StorageId gx = MakeGradient(x);
    AddOp("aten.cat.default", std::move(reads), {gx}, 0);
    Give(x, gx, false);
  });
  return out;
}

Tensor Network::Reshape(Tensor x) {
  const StorageId s = tensors_[x].storage;
  const auto view = [this](StorageId of) {
    Op& op = AddOp("aten.view.default", {of}, {}, 0);
    op.kind = OpKind::kView;
    op.time_ns = 0;
  };
  view(s);
  const Tensor out =
      NewTensor(s, tensors_[x].bytes, tensors_[x].wants_gradient);
  OnBackward([this, x, out, view] {
    if (Gradient(out) == kNone) return;
    view(Gradient(out));
    Give(x, Gradient(out), tensors_[out].gradient_shared);
  });
  return out;
}

Tensor Network::Exchange(Tensor x) {
  const int64_t bytes = tensors_[x].bytes;
  // A link has a tenth of the memory's bandwidth.
  const auto exchange = [this](StorageId from, StorageId to) {
    Op& op = AddOp("c10d.alltoall_base_.default", {from}, {to}, 0);
    op.kind = OpKind::kCollective;
    op.time_ns *= 10;
  };
  const StorageId s = NewStorage(bytes, Category::kCommunication, "all_to_all");
  exchange(tensors_[x].storage, s);
  const Tensor out = NewTensor(s, bytes, true);
  OnBackward([this, x, out, exchange] {
    const StorageId g = Gradient(out);
    const StorageId gx = g == kNone ? kNone : MakeGradient(x);
    if (gx == kNone) return;
    exchange(g, gx);
    Give(x, gx, false);
  });
  return out;
}

Tensor Network::Custom(const std::vector<Tensor>& inputs, int64_t out_bytes,
                       const std::vector<Tensor>& kept, bool keeps_output,
                       int64_t time_ns, int64_t workspace_bytes) {
  std::vector<StorageId> reads;
  for (const Tensor t : inputs) reads.push_back(tensors_[t].storage);
  const StorageId s = NewStorage(out_bytes, Category::kActivation, "output");
  Op& op = AddOp("op", std::move(reads), {s}, 0);
  op.time_ns = time_ns;
  op.workspace_bytes = workspace_bytes;
  std::vector<StorageId> saved;
  for (const Tensor t : kept) saved.push_back(tensors_[t].storage);
  if (keeps_output) saved.push_back(s);
  for (const StorageId k : saved) Save(k);
  const Tensor out = NewTensor(s, out_bytes, true);
  OnBackward([this, inputs, out, saved, time_ns, workspace_bytes] {
    const StorageId g = Gradient(out);
    if (g == kNone) return;
    std::vector<StorageId> needs = {g};
    needs.insert(needs.end(), saved.begin(), saved.end());
    std::vector<StorageId> made;
    std::vector<Tensor> of;
    for (const Tensor t : inputs) {
      const StorageId gt = MakeGradient(t);
      if (gt == kNone) continue;
      made.push_back(gt);
      of.push_back(t);
    }
    Op& backward = AddOp("op.backward", std::move(needs), made, 0);
    backward.time_ns = 2 * time_ns;
    backward.workspace_bytes = workspace_bytes;
    for (size_t i = 0; i < of.size(); ++i) Give(of[i], made[i], false);
  });
  return out;
}

void Network::Loss(Tensor logits) {
  Begin("loss");
  const Tensor log =
      Map(logits, {.name = "aten._log_softmax.default", .keep = Keep::kOutput});
  const StorageId s = NewStorage(4, Category::kActivation, "loss");
  AddOp("aten.nll_loss_forward.default", {tensors_[log].storage}, {s}, 0).kind =
      OpKind::kOnce;
  graph_.required = {s};
  OnBackward([this, log, s] {
    const StorageId g = MakeGradient(log);
    AddOp("aten.nll_loss_backward.default", {s}, {g}, 0);
    Give(log, g, false);
  });
  End(log);
  // The function that ran the forward returns and drops its variables.
  const OpId now = graph_.op_count() - 1;
  for (const StorageId made : scopes_.back().made) {
    graph_.storages[made].release_op = now;
  }
  graph_.storages[tensors_[log].storage].release_op = now;
}

void Network::Optimize() {
  phase_ = Phase::kOptimizer;
  for (const Parameters& group : parameters_) {
    if (group.gradients.empty()) continue;
    scopes_.back().path = group.module;
    int64_t largest = 0;
    for (const StorageId s : group.gradients) {
      largest = std::max(largest, graph_.storages[s].bytes);
    }
    Op& op = AddOp("optimizer.adamw", group.gradients, {}, 0);
    op.kind = OpKind::kOnce;
    // Reads and writes the weights, the master copy and both moments.
    op.time_ns = Time(0, group.bytes * 15);
    op.workspace_bytes = 2 * largest;  // one 32-bit temporary
  }
}

StepGraph Network::Finish() && {
  phase_ = Phase::kBackward;
  while (!backward_.empty()) {
    const std::function<void()> run = std::move(backward_.back());
    backward_.pop_back();
    run();
  }
  Optimize();
  return std::move(graph_);
}

}  // namespace reprise::planner
