// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "bench/generate/generate_models.h"

namespace reprise::planner {
namespace {

// Returns between 1 and 1024 units; each factor of two is equally likely.
int64_t Spread(Random& random) {
  const int64_t scale = int64_t{1} << random.Below(10);
  return scale + random.Below(scale);
}

}  // namespace

StepGraph LayeredGraph(const Network::Options& options, int units) {
  Network net(options);
  Random random(options.seed ^ 0x6c61796572656421);
  std::vector<Tensor> before = {net.Input(1 << 20)};
  std::vector<Tensor> older;
  for (int unit = 0; unit < units; ++unit) {
    net.Begin("layers." + std::to_string(unit));
    const int width = 6 + random.Below(9);
    // Every output of the previous layer gets a reader. Further inputs are
    // drawn from that layer, one in four from earlier ones.
    std::vector<std::vector<Tensor>> inputs(width);
    for (const Tensor t : before) inputs[random.Below(width)].push_back(t);
    std::vector<Tensor> made;
    for (std::vector<Tensor>& in : inputs) {
      const size_t wanted = 1 + random.Below(4);
      while (in.size() < wanted || in.empty()) {
        const bool far = !older.empty() && random.Percent(25);
        const std::vector<Tensor>& from = far ? older : before;
        const Tensor t = from[random.Below(static_cast<int64_t>(from.size()))];
        if (std::find(in.begin(), in.end(), t) != in.end()) break;
        in.push_back(t);
      }
      std::vector<Tensor> kept;
      for (const Tensor t : in) {
        if (random.Percent(60)) kept.push_back(t);
      }
      const int64_t bytes = Spread(random) << 18;
      const bool keeps_output = random.Percent(30);
      const int64_t time_ns = Spread(random) * 5'000;
      const int64_t workspace = random.Percent(20) ? bytes / 4 : 0;
      made.push_back(
          net.Custom(in, bytes, kept, keeps_output, time_ns, workspace));
    }
    net.End(made.back());
    older.insert(older.end(), before.begin(), before.end());
    if (older.size() > 64) older.erase(older.begin(), older.end() - 64);
    before = made;
  }
  const Tensor last =
      net.Custom(before, 1 << 20, before, /*keeps_output=*/false,
                 /*time_ns=*/20'000, /*workspace_bytes=*/0);
  net.Loss(last);
  return std::move(net).Finish();
}

}  // namespace reprise::planner
