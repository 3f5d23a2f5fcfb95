// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>
#include <utility>

#include "bench/generate/generate_models.h"

namespace reprise::planner {
namespace {

constexpr int64_t kBytesPerPixelValue = 2;

// Size of a batch of images and their number of channels.
struct Images {
  int64_t batch = 1;
  int64_t side = 1;
  int64_t channels = 1;

  int64_t pixels() const { return batch * side * side; }
  int64_t bytes() const { return pixels() * channels * kBytesPerPixelValue; }
};

Tensor Convolution(Network& net, Tensor x, const Images& from, const Images& to,
                   int64_t kernel) {
  const int64_t weights = from.channels * to.channels * kernel * kernel;
  return net.Linear(
      x, {.name = "aten.convolution.default",
          .out_bytes = to.bytes(),
          .flops = 2 * to.pixels() * weights,
          .parameter_bytes = weights * kBytesPerPixelValue,
          // Memory to unfold an eighth of the input.
          .workspace_bytes = kernel > 1 ? from.bytes() * kernel / 8 : 0});
}

Tensor BatchNorm(Network& net, Tensor x, const Images& shape) {
  return net.Map(x, {.name = "aten.native_batch_norm.default",
                     .keep = Keep::kInput,
                     .statistics_bytes = shape.channels * 8,
                     .parameter_bytes = shape.channels * 4});
}

Tensor Relu(Network& net, Tensor x) {
  return net.MapInPlace("aten.relu_.default", x, Keep::kOutput);
}

Tensor ConvNormRelu(Network& net, Tensor x, const Images& from,
                    const Images& to, int64_t kernel) {
  x = Convolution(net, x, from, to, kernel);
  return Relu(net, BatchNorm(net, x, to));
}

Tensor Classifier(Network& net, Tensor x, const Images& shape) {
  net.Begin("head");
  const int64_t pooled = shape.batch * shape.channels * kBytesPerPixelValue;
  x = net.Map(
      x,
      {.name = "aten.mean.dim", .out_bytes = pooled, .keep = Keep::kNothing});
  x = net.Reshape(x);
  x = net.Linear(x, {.name = "aten.addmm.default",
                     .out_bytes = shape.batch * 1000 * kBytesPerPixelValue,
                     .flops = 2 * shape.batch * shape.channels * 1000,
                     .parameter_bytes = shape.channels * 1000 * 2});
  return net.End(x);
}

// ---- ResNet ----

Tensor Bottleneck(Network& net, Tensor x, const Images& from,
                  const Images& to) {
  Images narrow = to;
  narrow.channels /= 4;
  Images narrow_in = narrow;
  narrow_in.side = from.side;
  Tensor h = ConvNormRelu(net, x, from, narrow_in, 1);
  h = ConvNormRelu(net, h, narrow_in, narrow, 3);
  h = BatchNorm(net, Convolution(net, h, narrow, to, 1), to);
  Tensor skip = x;
  if (from.channels != to.channels) {
    skip = BatchNorm(net, Convolution(net, x, from, to, 1), to);
  }
  return Relu(net, net.AddInPlace(h, skip));
}

// Returns the units per stage in the proportions 3:4:6:3, filling the first
// stages first.
std::array<int, 4> Stages(int units) {
  constexpr std::array<int, 16> kOrder = {0, 1, 2, 3, 2, 1, 0, 2,
                                          1, 3, 2, 0, 1, 2, 3, 2};
  std::array<int, 4> stages = {};
  for (int unit = 0; unit < units; ++unit) ++stages[kOrder[unit % 16]];
  return stages;
}

// ---- Diffusion ----

Tensor GroupNorm(Network& net, Tensor x, const Images& shape) {
  return net.Map(x, {.name = "aten.native_group_norm.default",
                     .keep = Keep::kInput,
                     .statistics_bytes = shape.batch * 256,
                     .parameter_bytes = shape.channels * 4});
}

Tensor Silu(Network& net, Tensor x) {
  return net.Map(x, {.name = "aten.silu.default", .keep = Keep::kInput});
}

Tensor ResidualBlock(Network& net, Tensor x, Tensor embedding,
                     const Images& from, const Images& to) {
  net.Begin("residual");
  Tensor h = Convolution(net, Silu(net, GroupNorm(net, x, from)), from, to, 3);
  const int64_t scale = to.batch * to.channels;
  const Tensor shift =
      net.Linear(embedding, {.name = "aten.addmm.default",
                             .out_bytes = scale * kBytesPerPixelValue,
                             .flops = 2 * scale * 1280,
                             .parameter_bytes = to.channels * 1280 * 2});
  h = net.Product("aten.add.Tensor", h, shift, to.bytes(), 0);
  h = net.Dropout(Silu(net, GroupNorm(net, h, to)));
  h = Convolution(net, h, to, to, 3);
  const Tensor skip =
      from.channels == to.channels ? x : Convolution(net, x, from, to, 1);
  return net.End(net.Add(h, skip));
}

Tensor SpatialAttention(Network& net, Tensor x, const Images& shape) {
  net.Begin("attention");
  const auto matrix = [&](int64_t wide) {
    return Network::Weighted{
        .name = "aten.addmm.default",
        .out_bytes = shape.bytes() * wide,
        .flops = 2 * shape.pixels() * shape.channels * shape.channels * wide,
        .parameter_bytes = shape.channels * shape.channels * wide * 2};
  };
  Tensor h = net.Reshape(GroupNorm(net, x, shape));
  const std::vector<Tensor> part = net.Split(net.Linear(h, matrix(3)), 3);
  h = net.Attention(
      part[0], part[1], part[2],
      4 * shape.pixels() * shape.side * shape.side * shape.channels);
  h = net.Linear(h, matrix(1));
  return net.End(net.Add(x, h));
}

// Returns the number of blocks of each of the four levels on the way down (and
// up): first one per level, then further ones in turn.
std::array<int, 4> Levels(int units) {
  std::array<int, 4> levels = {};
  for (int unit = 0; unit < units; ++unit) ++levels[unit % 4];
  return levels;
}

}  // namespace

StepGraph ResNetGraph(const Network::Options& options, int units) {
  Network net(options);
  Images shape{.batch = 32, .side = 224, .channels = 3};
  Tensor x = net.Input(shape.bytes());
  net.Begin("stem");
  Images to{.batch = 32, .side = 112, .channels = 64};
  x = ConvNormRelu(net, x, shape, to, 7);
  to.side = 56;
  x = net.End(net.Map(x, {.name = "aten.max_pool2d_with_indices.default",
                          .out_bytes = to.bytes(),
                          .keep = Keep::kInput,
                          .statistics_bytes = to.bytes() * 4}));
  shape = to;
  const std::array<int, 4> stages = Stages(units);
  for (int stage = 0; stage < 4; ++stage) {
    to = {.batch = 32, .side = 56 >> stage, .channels = 256 << stage};
    for (int block = 0; block < stages[stage]; ++block) {
      net.Begin("layer" + std::to_string(stage + 1) + "." +
                std::to_string(block));
      x = net.End(Bottleneck(net, x, shape, to));
      shape = to;
    }
  }
  net.Loss(Classifier(net, x, shape));
  return std::move(net).Finish();
}

StepGraph UNetGraph(const Network::Options& options, int units) {
  Network net(options);
  Images shape{.batch = 2, .side = 512, .channels = 3};
  Tensor x = net.Input(shape.bytes());
  const std::array<int, 4> levels = Levels(units);
  std::vector<std::pair<Tensor, Images>> skips;
  for (int level = 0; level < 4 && levels[level] > 0; ++level) {
    const Images to{.batch = 2, .side = 512 >> level, .channels = 64 << level};
    net.Begin("down." + std::to_string(level));
    for (int block = 0; block < levels[level]; ++block) {
      x = ConvNormRelu(net, x, shape, to, 3);
      shape = to;
    }
    net.End(x);
    skips.push_back({x, shape});
    shape.side /= 2;
    x = net.Map(x, {.name = "aten.max_pool2d_with_indices.default",
                    .out_bytes = shape.bytes(),
                    .keep = Keep::kInput,
                    .statistics_bytes = shape.bytes() * 4});
  }
  net.Begin("bottom");
  Images to = shape;
  to.channels *= 2;
  x = net.End(ConvNormRelu(net, x, shape, to, 3));
  shape = to;
  while (!skips.empty()) {
    const auto [skip, skip_shape] = skips.back();
    skips.pop_back();
    const int level = static_cast<int>(skips.size());
    net.Begin("up." + std::to_string(level));
    x = Convolution(net, x, shape, skip_shape, 2);
    x = net.Concat(skip, x);
    shape = skip_shape;
    shape.channels *= 2;
    for (int block = 0; block < levels[level]; ++block) {
      x = ConvNormRelu(net, x, shape, skip_shape, 3);
      shape = skip_shape;
    }
    net.End(x);
  }
  net.Begin("head");
  to = shape;
  to.channels = 2;
  net.Loss(net.End(Convolution(net, x, shape, to, 1)));
  return std::move(net).Finish();
}

StepGraph DiffusionUNetGraph(const Network::Options& options, int units) {
  Network net(options);
  Images shape{.batch = 8, .side = 64, .channels = 4};
  Tensor x = net.Input(shape.bytes());
  net.Begin("time");
  const int64_t row = shape.batch * 1280 * kBytesPerPixelValue;
  const Tensor embedding = net.End(
      net.Linear(net.Input(row), {.name = "aten.addmm.default",
                                  .out_bytes = row,
                                  .flops = 2 * shape.batch * 1280 * 1280,
                                  .parameter_bytes = 1280 * 1280 * 2}));
  const std::array<int, 4> levels = Levels(units);
  Images to{.batch = 8, .side = 64, .channels = 320};
  x = Convolution(net, x, shape, to, 3);
  shape = to;
  std::vector<std::pair<Tensor, Images>> skips;
  for (int level = 0; level < 4 && levels[level] > 0; ++level) {
    to = {.batch = 8, .side = 64 >> level, .channels = level == 0 ? 320 : 640};
    if (level > 0) x = Convolution(net, x, shape, to, 3);
    shape = to;
    for (int block = 0; block < levels[level]; ++block) {
      net.Begin("down." + std::to_string(level) + "." + std::to_string(block));
      x = ResidualBlock(net, x, embedding, shape, to);
      if (level > 0) x = SpatialAttention(net, x, to);
      net.End(x);
      shape = to;
      skips.push_back({x, shape});
    }
  }
  int from = static_cast<int>(skips.size());
  while (!skips.empty()) {
    const auto [skip, skip_shape] = skips.back();
    skips.pop_back();
    net.Begin("up." + std::to_string(--from));
    if (shape.side != skip_shape.side) {
      Images large = shape;
      large.side = skip_shape.side;
      x = net.Map(x, {.name = "aten.upsample_nearest2d.vec",
                      .out_bytes = large.bytes(),
                      .keep = Keep::kNothing});
      shape = large;
    }
    x = net.Concat(x, skip);
    Images both = shape;
    both.channels += skip_shape.channels;
    x = ResidualBlock(net, x, embedding, both, skip_shape);
    shape = skip_shape;
    if (shape.side < 64) x = SpatialAttention(net, x, shape);
    net.End(x);
  }
  net.Begin("head");
  to = {.batch = 8, .side = 64, .channels = 4};
  x = Silu(net, GroupNorm(net, x, shape));
  net.Loss(net.End(Convolution(net, x, shape, to, 3)));
  return std::move(net).Finish();
}

}  // namespace reprise::planner
