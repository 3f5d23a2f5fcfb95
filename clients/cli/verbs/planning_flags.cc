// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/planning_flags.h"

#include "base/str_cat.h"
#include "clients/cli/core/plan_options.h"
#include "formats/convert/search_options.h"
#include "planner/construct/strategy.h"

namespace reprise::cli {

void PlanningOptions::Apply(planner::Request& request) const {
  request.target_gap = target_gap;
  request.seed = seed;
  request.until_stopped = has_time_limit;
  request.strategy = strategy;
}

void PlanningOptions::Apply(v1::PlanRequest& request) const {
  *request.mutable_capabilities() = capabilities;
  if (has_time_limit) {
    request.set_time_limit_ms(static_cast<uint32_t>(time_limit.count()));
  }
  request.set_target_gap(target_gap);
  request.set_seed(seed);
  request.set_threads(static_cast<uint32_t>(threads));
  request.set_strategy(formats::ToProto(strategy));
}

void PlanningOptions::Apply(v1::SweepRequest& request) const {
  *request.mutable_capabilities() = capabilities;
  if (has_time_limit) {
    request.set_time_limit_ms(static_cast<uint32_t>(time_limit.count()));
  }
  request.set_target_gap(target_gap);
  request.set_seed(seed);
  request.set_threads(static_cast<uint32_t>(threads));
}

void PlanningFlags::Define(Verb& verb, bool with_strategy) {
  verb_ = &verb;
  verb.Add("--executor", executor_,
           "Who will run it: free (any schedule; default for files), "
           "once (each op at most once more, in the backward), tape "
           "(PyTorch; default for ids), joint (torch.compile), tf-graph "
           "(TensorFlow). Keys refine it: "
           "free:seeded_ok=1 runs random ops again",
           {.offers = {"free", "once", "tape", "joint", "tf-graph"}});
  verb.Add("--time-limit", time_limit_,
           "Search this long unless the gap is reached before. "
           "Without it: a fixed amount of work, and this at most",
           {.shows_default = true});
  if (with_strategy) {
    verb.Add("--strategy", strategy_,
             "auto, or a plan by name: memory (about sqrt(n) "
             "checkpoints), speed (keep convolutions and matrix "
             "products), collection (keep what is pinned), per-block "
             "(recompute each block), save-all",
             {.shows_default = true,
              .offers = {"auto", "memory", "speed", "collection", "per-block",
                         "save-all"}});
  }
  verb.Add("--gap", gap_,
           "Stop when the plan is at most this far above the bound, in "
           "% of the step time",
           {.shows_default = true});
  verb.Add("--seed", seed_, "Seed of the search", {.shows_default = true});
  verb.Add("--threads", threads_, "Searches side by side, with --time-limit",
           {.shows_default = true, .range = {{1, 256}}});
}

StatusOr<PlanningOptions> PlanningFlags::Check(bool is_file) const {
  PlanningOptions options;
  ASSIGN_OR_RETURN(options.time_limit, ParseTimeLimit(time_limit_));
  ASSIGN_OR_RETURN(options.target_gap, ParseGap(gap_));
  const auto strategy = planner::ParseStrategy(strategy_);
  if (!strategy.ok()) {
    return InvalidArgument(StrCat("--", strategy.status().message()));
  }
  options.strategy = *strategy;
  const std::string fallback = is_file ? "free" : "tape";
  ASSIGN_OR_RETURN(
      options.capabilities,
      ExecutorCapabilities(executor_.empty() ? fallback : executor_));
  options.seed = seed_;
  options.threads = threads_;
  options.has_time_limit = verb_ != nullptr && verb_->Given("--time-limit");
  return options;
}

}  // namespace reprise::cli
