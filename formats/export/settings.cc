// SPDX-License-Identifier: Apache-2.0
#include "formats/export/settings.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "base/str_cat.h"
#include "planner/construct/checkpointed.h"
#include "planner/model/versions.h"

namespace reprise::formats {
namespace {

using planner::Checkpointed;
using planner::OpId;
using planner::StepGraph;

// The repeated modules of a step, in the order of its forward.
struct Layers {
  Checkpointed all;
  std::vector<std::string> names;  // by region

  int count() const { return static_cast<int>(names.size()); }

  // Returns the layers for which `region_of` gives a region; -1: none.
  template <typename RegionOf>
  Checkpointed Of(RegionOf region_of) const {
    Checkpointed some = all;
    for (int32_t& region : some.region) {
      if (region >= 0) region = region_of(region);
    }
    return some;
  }
};

Layers FindLayers(const StepGraph& graph) {
  Layers layers{.all = planner::CheckpointBlocks(graph), .names = {}};
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    if (layers.all.region[o] == layers.count()) {
      layers.names.emplace_back(planner::BlockOf(graph.ops[o].module));
    }
  }
  return layers;
}

// Whether a name can stand in a program: names come from files of others.
bool IsPlain(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '.';
  });
}

// Returns "a", "b".
std::string Quoted(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) {
    all += StrCat(all.empty() ? "\"" : ", \"", name, "\"");
  }
  return all;
}

class Search {
 public:
  Search(const StepGraph& graph, const planner::Capabilities& capabilities,
         int64_t budget_bytes)
      : graph_(graph),
        capabilities_({.seeded_ok = true,
                       .collective_ok = true,
                       .duplicate_outputs = true,
                       .free_policy = capabilities.free_policy,
                       .ns_per_op = capabilities.ns_per_op}),
        budget_bytes_(budget_bytes),
        layers_(FindLayers(graph)) {}

  const Layers& layers() const { return layers_; }
  // Of a tool that always runs all of a region again.
  void RunToTheEnd() { layers_.all.stops_early = false; }

  // Judges a setting and keeps the best. Returns whether it fits.
  bool Try(const Checkpointed& checkpointed, std::string what,
           std::string text) {
    const planner::CheckpointedStep step =
        planner::RunCheckpointed(graph_, checkpointed);
    const auto found = planner::Evaluate(
        step.graph,
        planner::WithFrees(step.graph, step.execs, capabilities_.free_policy),
        capabilities_);
    if (!found.ok()) {
      refused_ = found.status().message();
      return false;
    }
    Setting made{.what = std::move(what),
                 .text = std::move(text),
                 .peak_bytes = found->peak_bytes,
                 .time_ns = found->time_ns,
                 .fits = found->peak_bytes <= budget_bytes_};
    const bool fits = made.fits;
    const auto rank = [](const Setting& one) {
      return one.fits ? std::pair(int64_t{0}, one.time_ns)
                      : std::pair(int64_t{1}, one.peak_bytes);
    };
    if (!best_ || rank(made) < rank(*best_)) best_ = std::move(made);
    return fits;
  }

  // Checkpoints the first 1, 2, ... layers, until that fits: more cost more.
  // Returns whether it does.
  template <typename Text>
  bool TryFirst(Text text) {
    for (int n = 1; n <= layers_.count(); ++n) {
      const bool fits = Try(
          layers_.Of([n](int32_t region) { return region < n ? region : -1; }),
          StrCat("checkpoints the first ", n, " of ", layers_.count(),
                 " layers"),
          text(n));
      if (fits) return true;
    }
    return false;
  }

  // Checkpoints all regions, saves nothing in them, and then saves one kind of
  // op after the other, those first that save the most time per byte, as long
  // as all of it fits. `kind_of` an op: empty if it cannot be saved.
  template <typename KindOf, typename Text>
  void TrySaving(const Checkpointed& regions, const std::string& noun,
                 KindOf kind_of, Text text) {
    struct Kind {
      std::string name;
      std::vector<OpId> ops = {};
      double time_ns = 0, bytes = 0;
    };
    std::map<std::string, Kind> by_name;
    for (OpId o = 0; o < graph_.op_count(); ++o) {
      const planner::Op& op = graph_.ops[o];
      if (regions.region[o] < 0 || op.kind == planner::OpKind::kView) continue;
      std::string name = kind_of(o);
      if (!IsPlain(name)) continue;
      Kind& kind = by_name.try_emplace(name, Kind{.name = name}).first->second;
      kind.ops.push_back(o);
      kind.time_ns += static_cast<double>(planner::RerunNs(op)) +
                      static_cast<double>(capabilities_.ns_per_op);
      for (const planner::StorageId s : op.writes) {
        kind.bytes += static_cast<double>(graph_.storages[s].bytes);
      }
    }
    double step_ns = 0;
    for (const planner::Op& op : graph_.ops) {
      step_ns += static_cast<double>(op.time_ns);
    }
    std::vector<Kind> kinds;
    for (auto& [name, kind] : by_name) {
      // What saves less of the step is not worth a line.
      if (kind.time_ns > step_ns / 1000) kinds.push_back(std::move(kind));
    }
    std::stable_sort(kinds.begin(), kinds.end(),
                     [](const Kind& a, const Kind& b) {
                       return a.time_ns * b.bytes > b.time_ns * a.bytes;
                     });
    const char* const where =
        layers_.count() > 0 ? " in its layers" : " in the whole forward";
    Checkpointed with = regions;
    std::vector<std::string> names;
    if (!Try(with, StrCat("saves no ", noun, where), text(names))) {
      return;
    }
    for (const Kind& kind : kinds) {
      Checkpointed more = with;
      for (const OpId o : kind.ops) more.saved[o] = 1;
      names.push_back(kind.name);
      if (Try(more,
              StrCat("saves ", names.size(), " of ", kinds.size(), " ", noun,
                     where),
              text(names))) {
        with = std::move(more);
      } else {
        names.pop_back();
      }
    }
  }

  void Forget() { best_.reset(); }

  StatusOr<Setting> Best(std::string_view tool) const {
    if (best_) return *best_;
    return FailedPrecondition(
        layers_.count() == 0
            ? StrCat("--for ", std::string(tool),
                     ": this step has no repeated modules (such as layers.0, "
                     "layers.1), which it checkpoints; another tool may do: ",
                     "torch-sac, jax-names")
            : StrCat("--for ", std::string(tool),
                     ": none of its settings can run this step: ", refused_));
  }

 private:
  const StepGraph& graph_;
  const planner::Capabilities capabilities_;
  const int64_t budget_bytes_;
  Layers layers_;
  std::optional<Setting> best_;
  std::string refused_;  // the newest reason
};

// The layers, or the whole forward where nothing repeats.
Checkpointed RegionsOf(const StepGraph& graph, const Layers& layers) {
  Checkpointed regions = layers.all;
  if (layers.count() > 0) return regions;
  for (OpId o = 0; o < graph.op_count(); ++o) {
    if (graph.ops[o].phase != planner::Phase::kForward) break;
    regions.region[o] = 0;
  }
  return regions;
}

// ---- The tools ----

void Transformers(const StepGraph& /*graph*/, Search& search) {
  const Layers& layers = search.layers();
  search.TryFirst([&](int n) {
    std::string text = "model.gradient_checkpointing_enable()";
    if (n == layers.count()) return text;
    const std::vector<std::string> rest(layers.names.begin() + n,
                                        layers.names.end());
    return StrCat(text, "\nfor name in [", Quoted(rest),
                  "]:\n    model.get_submodule(name).gradient_checkpointing = "
                  "False");
  });
}

void Megatron(const StepGraph& /*graph*/, Search& search) {
  search.RunToTheEnd();
  const int count = search.layers().count();
  const auto flags = [](const char* method, int n) {
    return StrCat("--recompute-granularity full --recompute-method ", method,
                  " --recompute-num-layers ", n);
  };
  // Several layers at a time run all of them again, as all of them alone do.
  if (search.TryFirst([&](int n) { return flags("block", n); })) return;
  for (int n = 2; n <= count; ++n) {
    search.Try(search.layers().Of([n](int32_t region) { return region / n; }),
               StrCat("checkpoints all ", count, " layers, ", n, " at a time"),
               flags("uniform", n));
  }
}

// "    torch.ops.aten.mm.default,\n" for each.
std::string OpLines(const std::vector<std::string>& names,
                    const std::string& indent) {
  std::string lines;
  for (const std::string& name : names) {
    lines += StrCat(indent, "torch.ops.", name, ",\n");
  }
  return lines;
}

// torchtitan 0.3: full or selective, in all layers, and of a selective policy
// which ops it saves. Of matrix products it always recomputes each second one.
void TorchTitan(const StepGraph& graph, Search& search) {
  search.RunToTheEnd();
  const Checkpointed layers = search.layers().all;
  std::vector<uint8_t> second(graph.ops.size(), 0);
  std::vector<int> products(search.layers().count(), 0);
  for (OpId o = 0; o < graph.op_count(); ++o) {
    if (layers.region[o] < 0 || graph.ops[o].name != "aten.mm.default")
      continue;
    second[o] = ++products[layers.region[o]] % 2 == 0 ? 1 : 0;
  }
  if (search.layers().count() == 0) return;
  search.TrySaving(
      layers, "kinds of ops",
      [&](OpId o) {
        const planner::Op& op = graph.ops[o];
        const bool may = op.mutates.empty() && second[o] == 0;
        return may && op.name.find('.') != std::string::npos ? op.name
                                                             : std::string();
      },
      [](const std::vector<std::string>& names) {
        if (names.empty()) {
          return std::string("activation_checkpoint=FullAC.Config()");
        }
        return StrCat(
            "class Saving(SelectiveAC):\n    @dataclass(kw_only=True, "
            "slots=True)\n    class Config(SelectiveAC.Config):\n        "
            "pass\n\n    def get_save_ops(self):\n        return {\n",
            OpLines(names, "            "),
            "        }\n\nactivation_checkpoint=Saving.Config()");
      });
  // Its own list, as far as steps that are captured have its ops.
  Checkpointed own = layers;
  for (OpId o = 0; o < graph.op_count(); ++o) {
    static constexpr std::array<std::string_view, 8> kSaved = {
        "aten.mm.default",
        "aten.addmm.default",
        "aten.bmm.default",
        "aten.convolution.default",
        "aten._scaled_mm.default",
        "aten.max.default",
        "aten.topk.default",
        "_c10d_functional.reduce_scatter_tensor.default"};
    const std::string& name = graph.ops[o].name;
    const bool listed =
        std::find(kSaved.begin(), kSaved.end(), name) != kSaved.end() ||
        name.starts_with("aten._scaled_dot_product_");
    own.saved[o] = listed && own.region[o] >= 0 && second[o] == 0 ? 1 : 0;
  }
  search.Try(own, "saves the ops of its own list in its layers",
             "activation_checkpoint=SelectiveAC.Config()");
}

void TorchSac(const StepGraph& graph, Search& search) {
  const Layers& layers = search.layers();
  search.TrySaving(
      RegionsOf(graph, layers), "kinds of ops",
      [&](OpId o) {
        const planner::Op& op = graph.ops[o];
        return op.name.starts_with("aten.") && op.mutates.empty()
                   ? op.name
                   : std::string();
      },
      [&](const std::vector<std::string>& names) {
        return StrCat(
            "saved = [\n", OpLines(names, "    "),
            "]\ncontext_fn = functools.partial(\n    "
            "torch.utils.checkpoint.create_selective_checkpoint_contexts, "
            "saved)\n# in the forward, for ",
            layers.count() == 0 ? std::string("the whole model")
                                : StrCat("each of ", layers.names.front(),
                                         " ... ", layers.names.back()),
            ":\nx = torch.utils.checkpoint.checkpoint(\n    layer, x, "
            "use_reentrant=False, context_fn=context_fn)");
      });
}

void JaxNames(const StepGraph& graph, Search& search) {
  const Layers& layers = search.layers();
  const planner::Versions versions = planner::WalkVersions(graph);
  // What a module hands on: its last op that another module reads.
  std::vector<uint8_t> hands_on(graph.ops.size(), 0);
  for (const planner::Op& op : graph.ops) {
    const auto o = static_cast<OpId>(&op - graph.ops.data());
    for (const planner::ValueId v : versions.Need(o)) {
      const OpId maker = versions.maker[v];
      if (graph.ops[maker].module != op.module) hands_on[maker] = 1;
    }
  }
  search.TrySaving(
      RegionsOf(graph, layers), "names",
      [&](OpId o) {
        const std::string& module = graph.ops[o].module;
        const size_t begin = planner::BlockOf(module).size();
        return hands_on[o] != 0 && module.size() > begin
                   ? module.substr(begin == 0 ? 0 : begin + 1)
                   : std::string();
      },
      [&](const std::vector<std::string>& names) {
        std::string text =
            "# where these modules return: x = "
            "jax.ad_checkpoint.checkpoint_name(x, NAME)\n";
        return StrCat(text,
                      "policy = jax.checkpoint_policies.save_only_these_names(",
                      Quoted(names),
                      layers.count() > 0
                          ? ")\nlayer = jax.checkpoint(layer, policy=policy)"
                          : ")\nloss = jax.checkpoint(loss, policy=policy)");
      });
}

using Tool = void (*)(const StepGraph&, Search&);
const std::map<std::string, Tool, std::less<>>& Tools() {
  static const std::map<std::string, Tool, std::less<>> tools = {
      {"jax-names", JaxNames},
      {"megatron", Megatron},
      {"torch-sac", TorchSac},
      {"torchtitan", TorchTitan},
      {"transformers", Transformers}};
  return tools;
}

}  // namespace

std::vector<std::string> SettingTools() {
  std::vector<std::string> names;
  for (const auto& [name, tool] : Tools()) names.push_back(name);
  return names;
}

StatusOr<Setting> NearestSetting(std::string_view tool,
                                 const planner::StepGraph& graph,
                                 const planner::Capabilities& capabilities,
                                 int64_t budget_bytes) {
  const auto found = Tools().find(tool);
  if (found == Tools().end()) {
    return InvalidArgument(StrCat("--for ", std::string(tool.substr(0, 40)),
                                  ": is none of the known tools"));
  }
  Search search(graph, capabilities, budget_bytes);
  const size_t ops = graph.ops.size();
  const Checkpointed nothing{.region = std::vector<int32_t>(ops, -1),
                             .saved = std::vector<uint8_t>(ops, 0)};
  // Nothing is cheaper.
  if (search.Try(nothing, "checkpoints nothing", "")) return search.Best(tool);
  search.Forget();
  for (const std::string& name : search.layers().names) {
    if (!IsPlain(name)) {
      return FailedPrecondition(
          "--for: a module of this step has a name that no program can have");
    }
  }
  found->second(graph, search);
  return search.Best(tool);
}

}  // namespace reprise::formats
