// SPDX-License-Identifier: Apache-2.0
//
// The run that ranks share which one launcher started on this machine.
//
// `torchrun --no-python reprise run -- python train.py` runs this command once
// per rank. All of them are one job: one run, of which the first rank tells
// how it went. Ranks of one torchrun have the same parent; its id and start
// time name the run, with the attempt that torchrun counts.
#pragma once

#include <optional>
#include <string>

namespace reprise::cli {

struct Launched {
  int rank = 0;
  std::string run_id;
};

// From RANK, WORLD_SIZE and LOCAL_WORLD_SIZE. Nothing where this process is no
// rank, or where some ranks are on other machines.
std::optional<Launched> LaunchedTogether();

}  // namespace reprise::cli
