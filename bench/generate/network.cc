// SPDX-License-Identifier: Apache-2.0
#include "bench/generate/network.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace reprise::planner {
namespace {

constexpr int64_t kLaunchNs = 2'000;
constexpr int64_t kFlopsPerNs = 150'000;
constexpr int64_t kBytesPerNs = 1'500;
constexpr int64_t kAllocationBytes = 512;  // allocators round up to this
constexpr int64_t kGeneratorStateBytes = 16;
// Per two bytes of weight: the weight itself, four bytes of master copy and
// eight of Adam's moments.
constexpr int64_t kStaticPerParameterByte = 1 + 6;

int64_t Rounded(int64_t bytes) {
  return (bytes + kAllocationBytes - 1) / kAllocationBytes * kAllocationBytes;
}

void KeepFirstOfEach(std::vector<StorageId>& ids) {
  std::vector<StorageId> unique;
  for (const StorageId s : ids) {
    if (std::find(unique.begin(), unique.end(), s) == unique.end()) {
      unique.push_back(s);
    }
  }
  ids = std::move(unique);
}

}  // namespace

Network::Network(const Options& options)
    : random_(options.seed), noise_permille_(options.noise_permille) {
  graph_.name = options.name;
  scopes_.push_back({});
}

// ---- Modules ----

void Network::Begin(const std::string& module) {
  const std::string& outer = scopes_.back().path;
  Scope scope;
  scope.path = outer.empty() ? module : outer + "." + module;
  scopes_.push_back(std::move(scope));
}

Tensor Network::End(Tensor result) {
  const StorageId kept = tensors_[result].storage;
  const OpId now = graph_.op_count() - 1;
  const auto let_go = [&](StorageId s) {
    if (s != kNone && s != kept) graph_.storages[s].release_op = now;
  };
  for (const StorageId s : scopes_.back().made) let_go(s);
  let_go(scopes_.back().returned);
  scopes_.pop_back();
  let_go(scopes_.back().returned);
  scopes_.back().returned = kept;
  return result;
}

// ---- Records ----

Tensor Network::NewTensor(StorageId storage, int64_t bytes,
                          bool wants_gradient) {
  TensorData data;
  data.storage = storage;
  data.bytes = bytes;
  data.wants_gradient = wants_gradient;
  tensors_.push_back(data);
  return static_cast<Tensor>(tensors_.size()) - 1;
}

StorageId Network::NewStorage(int64_t bytes, Category category,
                              const char* what) {
  const StorageId id = graph_.storage_count();
  Storage storage;
  storage.bytes = Rounded(bytes);
  storage.category = category;
  storage.name = module().empty() ? what : module() + ":" + what;
  graph_.storages.push_back(std::move(storage));
  if (phase_ == Phase::kForward) scopes_.back().made.push_back(id);
  return id;
}

int64_t Network::Time(int64_t flops, int64_t traffic_bytes) {
  const int64_t time =
      std::max({kLaunchNs, flops / kFlopsPerNs, traffic_bytes / kBytesPerNs});
  const int64_t most = int64_t{1000} * noise_permille_;
  return time + time * (random_.Below(2 * most + 1) - most) / 1'000'000;
}

Op& Network::AddOp(std::string name, std::vector<StorageId> reads,
                   std::vector<StorageId> writes, int64_t flops) {
  KeepFirstOfEach(reads);
  int64_t traffic_bytes = 0;
  for (const StorageId s : reads) traffic_bytes += graph_.storages[s].bytes;
  for (const StorageId s : writes) traffic_bytes += graph_.storages[s].bytes;
  Op op;
  op.time_ns = Time(flops, traffic_bytes);
  op.phase = phase_;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  op.name = std::move(name);
  op.module = module();
  graph_.ops.push_back(std::move(op));
  return graph_.ops.back();
}

void Network::Save(StorageId storage) {
  graph_.storages[storage].saved_for_backward = true;
}

// ---- Gradients ----

void Network::OnBackward(std::function<void()> backward) {
  backward_.push_back([this, path = module(), run = std::move(backward)] {
    scopes_.back().path = path;
    run();
  });
}

void Network::Give(Tensor t, StorageId gradient, bool shared) {
  TensorData& data = tensors_[t];
  if (!data.wants_gradient || gradient == kNone) return;
  if (data.gradient == kNone) {
    data.gradient = gradient;
    data.gradient_shared = shared;
    return;
  }
  const StorageId old = data.gradient;
  if (data.gradient_shared && shared) {
    const StorageId sum =
        NewStorage(data.bytes, Category::kGradient, "gradient sum");
    AddOp("aten.add.Tensor", {old, gradient}, {sum}, 0);
    data.gradient = sum;
  } else {
    const StorageId onto = data.gradient_shared ? gradient : old;
    AddOp("aten.add_.Tensor", {old, gradient}, {}, 0).mutates = {onto};
    data.gradient = onto;
  }
  data.gradient_shared = false;
}

StorageId Network::MakeGradient(Tensor t) {
  if (!tensors_[t].wants_gradient) return kNone;
  return NewStorage(tensors_[t].bytes, Category::kGradient, "gradient");
}

// ---- Ops ----

Tensor Network::Input(int64_t bytes) {
  const StorageId s = NewStorage(bytes, Category::kInput, "batch");
  AddOp("reprise.step_begin", {}, {s}, 0).kind = OpKind::kOnce;
  return NewTensor(s, bytes, /*wants_gradient=*/false);
}

Tensor Network::Linear(Tensor x, const Weighted& op) {
  const StorageId in = tensors_[x].storage;
  const StorageId s = NewStorage(op.out_bytes, Category::kActivation, op.name);
  AddOp(op.name, {in}, {s}, op.flops).workspace_bytes =
      Rounded(op.workspace_bytes);
  Save(in);
  graph_.static_bytes += op.parameter_bytes * kStaticPerParameterByte;
  const Tensor out = NewTensor(s, op.out_bytes, true);
  const std::string unit = scopes_.size() > 1 ? scopes_[1].path : "";
  if (parameters_.empty() || parameters_.back().module != unit) {
    Parameters group;
    group.module = unit;
    parameters_.push_back(std::move(group));
  }
  parameters_.back().bytes += op.parameter_bytes;
  const size_t group = parameters_.size() - 1;

  OnBackward([this, x, out, in, op, group] {
    const StorageId g = Gradient(out);
    if (g == kNone) return;
    const std::string name = std::string(op.name) + ".backward";
    if (const StorageId gx = MakeGradient(x); gx != kNone) {
      AddOp(name + "_input", {g}, {gx}, op.flops).workspace_bytes =
          Rounded(op.workspace_bytes);
      Give(x, gx, false);
    }
    const StorageId gw =
        NewStorage(op.parameter_bytes, Category::kGradient, "weight.gradient");
    AddOp(name + "_weight", {g, in}, {gw}, op.flops).workspace_bytes =
        Rounded(op.workspace_bytes);
    parameters_[group].gradients.push_back(gw);
  });
  return out;
}

Tensor Network::Product(const char* name, Tensor a, Tensor b, int64_t out_bytes,
                        int64_t flops) {
  const StorageId in_a = tensors_[a].storage;
  const StorageId in_b = tensors_[b].storage;
  const StorageId s = NewStorage(out_bytes, Category::kActivation, name);
  AddOp(name, {in_a, in_b}, {s}, flops);
  Save(in_a);
  Save(in_b);
  const Tensor out = NewTensor(s, out_bytes, true);
  OnBackward([this, name, a, b, out, in_a, in_b, flops] {
    const StorageId g = Gradient(out);
    if (g == kNone) return;
    const StorageId ga = MakeGradient(a);
    AddOp(name, {g, in_b}, {ga}, flops);
    const StorageId gb = MakeGradient(b);
    AddOp(name, {g, in_a}, {gb}, flops);
    Give(a, ga, false);
    Give(b, gb, false);
  });
  return out;
}

Tensor Network::Attention(Tensor q, Tensor k, Tensor v, int64_t flops) {
  const int64_t bytes = tensors_[q].bytes;
  const StorageId s = NewStorage(bytes, Category::kActivation, "attention");
  const StorageId sums =
      NewStorage(bytes / 32, Category::kActivation, "logsumexp");
  const std::vector<StorageId> in = {tensors_[q].storage, tensors_[k].storage,
                                     tensors_[v].storage};
  AddOp("aten._scaled_dot_product_flash_attention.default", in, {s, sums},
        flops);
  for (const StorageId kept : {in[0], in[1], in[2], s, sums}) Save(kept);
  const Tensor out = NewTensor(s, bytes, true);
  OnBackward([this, q, k, v, out, in, s, sums, flops] {
    const StorageId g = Gradient(out);
    if (g == kNone) return;
    std::vector<StorageId> made;
    for (const Tensor t : {q, k, v}) made.push_back(MakeGradient(t));
    // Recomputes the scores: five products instead of the forward's two.
    AddOp("aten._scaled_dot_product_flash_attention_backward.default",
          {g, in[0], in[1], in[2], s, sums}, made, flops * 5 / 2)
        .workspace_bytes = Rounded(tensors_[q].bytes / 8);
    Give(q, made[0], false);
    Give(k, made[1], false);
    Give(v, made[2], false);
  });
  return out;
}

Tensor Network::Map(Tensor x, const Elementwise& op) {
  const StorageId in = tensors_[x].storage;
  const int64_t bytes = op.out_bytes > 0 ? op.out_bytes : tensors_[x].bytes;
  const StorageId s = NewStorage(bytes, Category::kActivation, op.name);
  std::vector<StorageId> writes = {s};
  std::vector<StorageId> kept;
  if (op.keep != Keep::kNothing)
    kept.push_back(op.keep == Keep::kInput ? in : s);
  if (op.statistics_bytes > 0) {
    writes.push_back(
        NewStorage(op.statistics_bytes, Category::kActivation, "statistics"));
    kept.push_back(writes.back());
  }
  AddOp(op.name, {in}, writes, 0);
  for (const StorageId k : kept) Save(k);
  graph_.static_bytes += op.parameter_bytes * kStaticPerParameterByte;
  const Tensor out = NewTensor(s, bytes, true);
  OnBackward([this, x, out, kept, name = op.name] {
    const StorageId g = Gradient(out);
    const StorageId gx = g == kNone ? kNone : MakeGradient(x);
    if (gx == kNone) return;
    std::vector<StorageId> reads = {g};
    reads.insert(reads.end(), kept.begin(), kept.end());
    AddOp(std::string(name) + ".backward", std::move(reads), {gx}, 0);
    Give(x, gx, false);
  });
  return out;
}

Tensor Network::MapInPlace(const char* name, Tensor x, Keep keep) {
  const StorageId s = tensors_[x].storage;
  assert(!graph_.storages[s].saved_for_backward && keep != Keep::kInput);
  AddOp(name, {s}, {}, 0).mutates = {s};
  if (keep == Keep::kOutput) Save(s);
  const Tensor out = NewTensor(s, tensors_[x].bytes, true);
  OnBackward([this, x, out, s, keep, name] {
    const StorageId g = Gradient(out);
    const StorageId gx = g == kNone ? kNone : MakeGradient(x);
    if (gx == kNone) return;
    std::vector<StorageId> reads = {g};
    if (keep == Keep::kOutput) reads.push_back(s);
    AddOp(std::string(name) + ".backward", std::move(reads), {gx}, 0);
    Give(x, gx, false);
  });
  return out;
}

Tensor Network::Dropout(Tensor x) {
  const int64_t bytes = tensors_[x].bytes;
  const StorageId s = NewStorage(bytes, Category::kActivation, "dropout");
  // One byte of mask per two-byte element.
  const StorageId mask = NewStorage(bytes / 2, Category::kActivation, "mask");
  Op& op =
      AddOp("aten.native_dropout.default", {tensors_[x].storage}, {s, mask}, 0);
  op.kind = OpKind::kSeeded;
  op.state_bytes = kGeneratorStateBytes;
  Save(mask);
  const Tensor out = NewTensor(s, bytes, true);
  OnBackward([this, x, out, mask] {
    const StorageId g = Gradient(out);
    const StorageId gx = g == kNone ? kNone : MakeGradient(x);
    if (gx == kNone) return;
    AddOp("aten.native_dropout_backward.default", {g, mask}, {gx}, 0);
    Give(x, gx, false);
  });
  return out;
}

}  // namespace reprise::planner
