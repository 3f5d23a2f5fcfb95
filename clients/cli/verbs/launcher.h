// SPDX-License-Identifier: Apache-2.0
//
// The run shared by the ranks that one launcher started on this machine.
//
// `torchrun --no-python reprise run -- python train.py` runs this command once
// per rank. All of them are one job with one run, whose outcome the first rank
// reports. Ranks of the same torchrun have the same parent; its id and start
// time, with torchrun's count of attempts, name the run.
#pragma once

#include <optional>
#include <string>

namespace reprise::cli {

struct Launched {
  int rank = 0;
  std::string run_id;
};

// Determines it from RANK, WORLD_SIZE and LOCAL_WORLD_SIZE. Nothing if this
// process is not a rank, or if some ranks are on other machines.
std::optional<Launched> LaunchedTogether();

}  // namespace reprise::cli
