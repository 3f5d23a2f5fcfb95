// SPDX-License-Identifier: Apache-2.0
#include "evaluate.h"

#include <algorithm>
#include <utility>

namespace reprise {
namespace {

std::string Storage(int s) { return "storage " + std::to_string(s); }

// The state of one walk over a schedule.
class Walk {
 public:
  explicit Walk(const Graph& graph)
      : graph_(graph),
        present_(graph.storage_count(), 0),
        last_(graph.storage_count(), 0),
        runs_(graph.ops().size(), 0) {
    // What each op reads, in base order, at which version.
    for (const Op& op : graph.ops()) {
      std::vector<int>& needs = needs_.emplace_back();
      for (const int s : op.reads) needs.push_back(last_[s]);
      for (const int s : op.writes) last_[s] = 1;
      for (const int s : op.mutates) ++last_[s];
    }
  }

  Evaluation Run(const std::vector<int>& schedule) {
    for (at_ = 0; at_ < schedule.size(); ++at_) {
      const int entry = schedule[at_];
      if (entry >= static_cast<int>(graph_.ops().size())) {
        return Wrong(Here() + "there is no op " + std::to_string(entry));
      }
      if (-entry - 1 >= graph_.storage_count()) {
        return Wrong(Here() + "there is no " + Storage(-entry - 1));
      }
    }
    for (at_ = 0; at_ < schedule.size(); ++at_) {
      const int entry = schedule[at_];
      const std::string wrong = entry < 0 ? Free(-entry - 1) : Exec(entry);
      if (!wrong.empty()) return Wrong(wrong);
    }
    if (next_ < runs_.size()) {
      return Wrong("schedule: op " + std::to_string(next_) + " never runs");
    }
    for (const int s : graph_.required()) {
      if (present_[s] == last_[s]) continue;
      return Wrong("schedule: " + Storage(s) + " is required at version " +
                   std::to_string(last_[s]) + " at the end, but " + Fact(s));
    }
    if (found_.peak_op < 0) found_.peak_bytes = graph_.static_bytes();
    return std::move(found_);
  }

 private:
  static Evaluation Wrong(std::string why) {
    Evaluation wrong;
    wrong.wrong = std::move(why);
    return wrong;
  }

  std::string Here() const { return "schedule[" + std::to_string(at_) + "]: "; }

  std::string Where(int o) const {
    const std::string& name = graph_.ops()[o].name;
    return Here() + "op " + std::to_string(o) +
           (name.empty() ? "" : " (" + name.substr(0, 80) + ")");
  }

  std::string Fact(int s) const {
    if (present_[s] == 0) return "it is not present";
    return "version " + std::to_string(present_[s]) + " is present";
  }

  std::string Free(int s) {
    if (present_[s] == 0) {
      return Here() + Storage(s) + " is freed but not present";
    }
    present_[s] = 0;
    live_ -= graph_.bytes(s);
    return {};
  }

  std::string Exec(int o) {
    const Op& op = graph_.ops()[o];
    const bool again = runs_[o] > 0;
    if (!again && static_cast<size_t>(o) != next_) {
      return Where(o) + " runs for the first time before op " +
             std::to_string(next_);
    }
    if (again && op.once) {
      return Where(o) +
             " must not run again: its kind, its phase or the executor "
             "forbids it";
    }
    for (size_t i = 0; i < op.reads.size(); ++i) {
      const int s = op.reads[i], wanted = needs_[o][i];
      if (present_[s] == wanted) continue;
      return Where(o) + " needs " + Storage(s) + " at version " +
             std::to_string(wanted) + ", but " + Fact(s);
    }
    for (const int s : op.writes) {
      if (present_[s] == 0) live_ += graph_.bytes(s);
      if (present_[s] > 1) {
        return Where(o) + " writes " + Storage(s) + ", but " + Fact(s) +
               ": free it first";
      }
      present_[s] = 1;
    }
    for (const int s : op.mutates) ++present_[s];
    const int64_t alive = graph_.static_bytes() + live_ + op.workspace_bytes;
    if (found_.peak_op < 0 || alive > found_.peak_bytes) {
      found_.peak_bytes = alive;
      found_.peak_op = o;
    }
    found_.bytes_at.push_back(alive);
    found_.time_ns += op.time_ns;
    ++runs_[o];
    if (!again) ++next_;
    return {};
  }

  const Graph& graph_;
  // By storage: the version in memory, 0 if it is not; the last one of the step.
  std::vector<int> present_, last_;
  std::vector<std::vector<int>> needs_;
  std::vector<int> runs_;
  Evaluation found_;
  int64_t live_ = 0;
  // The op that is the next to run for the first time.
  size_t next_ = 0, at_ = 0;
};

}  // namespace

Evaluation Evaluate(const Graph& graph, const std::vector<int>& schedule) {
  Evaluation wrong;
  wrong.wrong = graph.Check();
  if (!wrong.wrong.empty()) return wrong;
  return Walk(graph).Run(schedule);
}

std::vector<int> WithFrees(const Graph& graph, const std::vector<int>& ops) {
  // By position in `ops`: what ends there.
  std::vector<std::vector<int>> ends(ops.size());
  std::vector<int> touched(graph.storage_count(), -1);
  for (size_t at = 0; at < ops.size(); ++at) {
    const Op& op = graph.ops()[ops[at]];
    for (const int s : op.reads) touched[s] = static_cast<int>(at);
    for (const int s : op.writes) {
      if (touched[s] >= 0) ends[touched[s]].push_back(s);
      touched[s] = static_cast<int>(at);
    }
  }
  for (int s = 0; s < graph.storage_count(); ++s) {
    const std::vector<int>& kept = graph.required();
    if (std::find(kept.begin(), kept.end(), s) != kept.end()) continue;
    if (touched[s] >= 0) ends[touched[s]].push_back(s);
  }
  std::vector<int> schedule;
  for (size_t at = 0; at < ops.size(); ++at) {
    schedule.push_back(ops[at]);
    std::sort(ends[at].begin(), ends[at].end());
    for (const int s : ends[at]) schedule.push_back(-s - 1);
  }
  return schedule;
}

}  // namespace reprise
