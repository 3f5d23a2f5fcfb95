// SPDX-License-Identifier: Apache-2.0
//
// The steps of a run in a compact form, and buckets of them for a screen.
//
//   steps     1 2 3 4 | 5 6 7 8 | 9 10 ...
//   bucket      max        max        ...     peaks; medians of times; counts
//
// Of several ranks the first report of each step counts, as steps come in order.
// 40 bytes a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/v1/query.pb.h"

namespace reprise::server {

class StepLog {
 public:
  void Add(const v1::StepReport& step, bool over_budget);
  void Add(const v1::VerifyReport& check);

  size_t size() const { return steps_.size(); }

  // Buckets of the steps numbered `from` to `to`, at most `buckets`.
  v1::StepBuckets Fold(uint64_t from, uint64_t to, size_t buckets) const;

 private:
  struct Step {
    uint64_t number = 0;
    int64_t peak_bytes = 0;
    int64_t time_ns = 0;
    uint32_t checks = 0;
    uint32_t differing = 0;
    bool planned = false;
    bool over_budget = false;
    bool out_of_memory = false;
    bool traced = false;
  };

  static bool Representative(const Step& step) {
    return !step.traced && step.checks == 0;
  }
  static void AddBucket(const Step* first, const Step* end,
                        v1::StepBuckets& to);
  static int64_t MedianTime(const Step* first, const Step* end, bool planned);

  std::vector<Step> steps_;
};

}  // namespace reprise::server
