// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "bench/generate/generate_models.h"

namespace reprise::planner {
namespace {

constexpr int64_t kBytesPerElement = 2;
constexpr int64_t kWords = 32'768;

// Dimensions that both networks share, and the parts around their layers.
struct Decoder {
  int64_t batch = 4;
  int64_t tokens = 1024;
  int64_t width = 1024;
  int64_t heads = 16;

  int64_t rows() const { return batch * tokens; }
  int64_t stream_bytes() const { return rows() * width * kBytesPerElement; }
  int64_t score_bytes() const {
    return batch * heads * tokens * tokens * kBytesPerElement;
  }
  // A matrix product over all rows.
  Network::Weighted Matrix(int64_t in, int64_t out) const {
    return {.name = "aten.addmm.default",
            .out_bytes = rows() * out * kBytesPerElement,
            .flops = 2 * rows() * in * out,
            .parameter_bytes = in * out * kBytesPerElement};
  }
  Network::Elementwise Norm() const {
    return {.name = "aten.native_layer_norm.default",
            .keep = Keep::kInput,
            .statistics_bytes = rows() * 8,
            .parameter_bytes = 2 * width * kBytesPerElement};
  }
};

Tensor Embed(Network& net, const Decoder& d) {
  const Tensor batch = net.Input(d.rows() * 8);
  net.Begin("embed");
  Network::Weighted table = d.Matrix(d.width, d.width);
  table.name = "aten.embedding.default";
  table.flops = 0;
  table.parameter_bytes = kWords * d.width * kBytesPerElement;
  return net.End(net.Linear(batch, table));
}

void Head(Network& net, const Decoder& d, Tensor x) {
  net.Begin("head");
  x = net.Map(x, d.Norm());
  const Tensor logits = net.Linear(x, d.Matrix(d.width, kWords));
  net.Loss(net.End(logits));
}

Tensor ExplicitAttention(Network& net, const Decoder& d, Tensor x) {
  net.Begin("attention");
  const Tensor qkv = net.Linear(x, d.Matrix(d.width, 3 * d.width));
  const std::vector<Tensor> part = net.Split(qkv, 3);
  const int64_t flops = 2 * d.rows() * d.tokens * d.width;
  Tensor scores =
      net.Product("aten.bmm.default", part[0], part[1], d.score_bytes(), flops);
  scores =
      net.Map(scores, {.name = "aten._softmax.default", .keep = Keep::kOutput});
  scores = net.Dropout(scores);
  Tensor out =
      net.Product("aten.bmm.default", scores, part[2], d.stream_bytes(), flops);
  out = net.Map(out, {.name = "aten.clone.default", .keep = Keep::kNothing});
  out = net.Reshape(out);
  out = net.Linear(out, d.Matrix(d.width, d.width));
  return net.End(net.Dropout(out));
}

Tensor FusedAttention(Network& net, const Decoder& d, Tensor x) {
  net.Begin("attention");
  const Tensor qkv = net.Linear(x, d.Matrix(d.width, 3 * d.width));
  const std::vector<Tensor> part = net.Split(qkv, 3);
  Tensor out = net.Attention(part[0], part[1], part[2],
                             4 * d.rows() * d.tokens * d.width / 2);
  out = net.Reshape(out);
  return net.End(net.Linear(out, d.Matrix(d.width, d.width)));
}

Tensor FeedForward(Network& net, const Decoder& d, Tensor x) {
  net.Begin("mlp");
  x = net.Linear(x, d.Matrix(d.width, 4 * d.width));
  x = net.Map(x, {.name = "aten.gelu.default", .keep = Keep::kInput});
  x = net.Linear(x, d.Matrix(4 * d.width, d.width));
  return net.End(net.Dropout(x));
}

Tensor Experts(Network& net, const Decoder& d, Tensor x) {
  constexpr int kLocalExperts = 4;
  net.Begin("moe");
  net.Begin("router");
  Network::Weighted small = d.Matrix(d.width, 64);
  Tensor gate = net.Linear(x, small);
  gate =
      net.Map(gate, {.name = "aten._softmax.default", .keep = Keep::kOutput});
  gate = net.End(gate);
  // Two copies of every token are sent to the experts.
  Tensor routed = net.Map(x, {.name = "aten.index_select.default",
                              .out_bytes = 2 * net.Bytes(x),
                              .keep = Keep::kNothing,
                              .statistics_bytes = d.rows() * 16});
  routed = net.Exchange(routed);
  const std::vector<Tensor> share = net.Split(routed, kLocalExperts);
  std::vector<Tensor> results;
  for (int e = 0; e < kLocalExperts; ++e) {
    net.Begin("experts." + std::to_string(e));
    // An expert receives half of the rows: two copies spread over four experts.
    Network::Weighted up = d.Matrix(d.width, 4 * d.width);
    up.out_bytes /= 2;
    up.flops /= 2;
    Network::Weighted down = d.Matrix(4 * d.width, d.width);
    down.out_bytes /= 2;
    down.flops /= 2;
    Tensor h = net.Linear(share[e], up);
    h = net.Map(h, {.name = "aten.silu.default", .keep = Keep::kInput});
    results.push_back(net.End(net.Linear(h, down)));
  }
  Tensor all = results[0];
  for (int e = 1; e < kLocalExperts; ++e) all = net.Concat(all, results[e]);
  all = net.Exchange(all);
  const Tensor out =
      net.Product("aten.mul.Tensor", all, gate, d.stream_bytes(), 0);
  return net.End(out);
}

using Part = Tensor (*)(Network&, const Decoder&, Tensor);

StepGraph Stack(const Network::Options& options, int units, const Decoder& d,
                Part attention, Part feed_forward) {
  Network net(options);
  Tensor x = Embed(net, d);
  for (int unit = 0; unit < units; ++unit) {
    net.Begin("layers." + std::to_string(unit));
    x = net.Add(x, attention(net, d, net.Map(x, d.Norm())));
    x = net.Add(x, feed_forward(net, d, net.Map(x, d.Norm())));
    net.End(x);
  }
  Head(net, d, x);
  return std::move(net).Finish();
}

}  // namespace

StepGraph TransformerGraph(const Network::Options& options, int units) {
  return Stack(options, units, {}, ExplicitAttention, FeedForward);
}

StepGraph MoeGraph(const Network::Options& options, int units) {
  return Stack(options, units, {.tokens = 2048}, FusedAttention, Experts);
}

}  // namespace reprise::planner
