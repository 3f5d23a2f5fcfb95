// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/str_cat.h"
#include "formats/import/trace.h"

namespace reprise::formats {

namespace {

// A GPU's caching allocator rounds up to this.
constexpr int64_t kRounding = 512;
constexpr int64_t kMostSum = int64_t{1} << 61;
// How many storages of one size are searched for the one that an op reads.
constexpr size_t kMostCandidates = 64;

// One allocation of the step. Ops are numbered as in the graph: 0 is
// reprise.step_begin.
struct Life {
  int64_t bytes = 0;
  int32_t writer = 0;
  int32_t last = -1;    // op that ran, or had run, when it was freed
  bool inside = false;  // allocated and freed within one op
};

bool HasWord(const std::string& name,
             std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(), [&](const char* word) {
    return name.find(word) != std::string::npos;
  });
}

v1::OpKind KindOf(const TraceOp& op, bool writes) {
  if (HasWord(op.name, {"c10d::", "nccl:", "gloo:"})) {
    return v1::OP_KIND_COLLECTIVE;
  }
  if (!writes || op.optimizer || op.name.ends_with("_")) {
    return v1::OP_KIND_ONCE;
  }
  return HasWord(op.name, {"dropout", "rand", "bernoulli", "normal",
                           "multinomial", "rrelu"})
             ? v1::OP_KIND_SEEDED
             : v1::OP_KIND_PURE;
}

class Builder {
 public:
  explicit Builder(const Trace& trace)
      : trace_(trace),
        step_(trace.step()),
        op_count_(step_.ops.size() + 1),
        by_time_(step_.ops) {}

  StatusOr<TraceGraph> Build() {
    RETURN_IF_ERROR(FollowAllocations());
    RETURN_IF_ERROR(AddOps());
    AddStorages();
    AddReads();
    Finish();
    return std::move(out_);
  }

 private:
  // Returns the graph's number of the op to which an allocation belongs: the
  // running op, else the next one.
  int32_t OpOf(const MemoryEvent& event) const {
    const int at = by_time_.At(event.thread, event.time_ns);
    if (at >= 0) return at + 1;
    const int begun = by_time_.BegunBy(event.time_ns);
    return std::min(begun + 1, static_cast<int>(step_.ops.size()));
  }
  // Returns the op to which a free belongs: the running op, else the most
  // recent. Memory that is freed as an op begins belongs to an earlier op.
  int32_t LastBefore(const MemoryEvent& event) const {
    const int at = by_time_.At(event.thread, event.time_ns - 1);
    return at >= 0 ? at + 1 : by_time_.BegunBy(event.time_ns - 1);
  }

  Status FollowAllocations() {
    std::unordered_map<uint64_t, size_t> open;
    std::vector<int64_t> highest(op_count_), at_begin(op_count_, -1);
    int64_t live = 0;
    for (const MemoryEvent& event : step_.events) {
      const int32_t op = event.bytes > 0 ? OpOf(event) : LastBefore(event);
      const auto slot = static_cast<size_t>(op);
      if (at_begin[slot] < 0) {
        at_begin[slot] = highest[slot] = live + step_.baseline_bytes;
      }
      live += event.bytes;
      highest[slot] = std::max(highest[slot], live + step_.baseline_bytes);
      if (event.bytes > 0) {
        open[event.address] = lives_.size();
        lives_.push_back({.bytes = event.bytes, .writer = op});
        continue;
      }
      const auto found = open.find(event.address);
      if (found == open.end()) {
        // Allocated before the step.
        lives_.push_back({.bytes = -event.bytes, .writer = 0, .last = op});
        from_before_ += -event.bytes;
        if (from_before_ > kMostSum) {
          return InvalidArgument("frees that add up to more than 2^61 bytes");
        }
        continue;
      }
      Life& life = lives_[found->second];
      open.erase(found);
      life.last = std::max(op, life.writer);
      life.inside = life.last == life.writer;
    }
    // Workspace of an op: its maximum, less what was there before and what it
    // leaves.
    workspace_.assign(op_count_, 0);
    for (size_t i = 0; i < op_count_; ++i) {
      if (at_begin[i] >= 0) workspace_[i] = highest[i] - at_begin[i];
    }
    for (const Life& life : lives_) {
      if (!life.inside && life.writer > 0) {
        int64_t& space = workspace_[static_cast<size_t>(life.writer)];
        space = std::max<int64_t>(0, space - life.bytes);
      }
    }
    return OkStatus();
  }

  Status AddOps() {
    v1::StepGraph& graph = out_.graph;
    v1::Op& begin = *graph.add_ops();
    begin.set_name("reprise.step_begin");
    begin.set_phase(v1::PHASE_FORWARD);
    begin.set_kind(v1::OP_KIND_ONCE);
    int64_t used_ns = 0;
    for (size_t i = 0; i < step_.ops.size(); ++i) {
      const TraceOp& from = step_.ops[i];
      v1::Op& op = *graph.add_ops();
      op.set_id(static_cast<uint32_t>(i + 1));
      op.set_name(from.name);
      op.set_module(step_.stacks[from.stack].module);
      op.set_phase(from.optimizer  ? v1::PHASE_OPTIMIZER
                   : from.backward ? v1::PHASE_BACKWARD
                                   : v1::PHASE_FORWARD);
      op.set_time_ns(step_.has_kernels ? from.kernel_ns
                                       : from.end_ns - from.start_ns);
      op.set_workspace_bytes(workspace_[i + 1]);
      if (op.time_ns() > kMostSum - used_ns) {
        return InvalidArgument("times that add up to more than 2^61 ns");
      }
      used_ns += op.time_ns();
    }
    begin.set_time_ns(std::max<int64_t>(0, step_.duration_ns - used_ns));
    return OkStatus();
  }

  void AddStorages() {
    v1::StepGraph& graph = out_.graph;
    storage_of_life_.assign(lives_.size(), -1);
    for (size_t i = 0; i < lives_.size(); ++i) {
      const Life& life = lives_[i];
      if (life.inside) continue;
      const auto id = static_cast<uint32_t>(graph.storages_size());
      storage_of_life_[i] = static_cast<int32_t>(id);
      life_of_storage_.push_back(i);
      v1::Storage& storage = *graph.add_storages();
      storage.set_id(id);
      storage.set_bytes(life.bytes);
      v1::Op& writer = *graph.mutable_ops(life.writer);
      writer.add_writes(id);
      storage.set_category(CategoryOf(life));
      if (life.writer > 0) storage.set_name(writer.name());
      if (storage.category() == v1::CATEGORY_ACTIVATION) {
        storage.set_saved_for_backward(true);
      }
      if (life.last < 0) graph.add_required(id);
    }
    for (int i = 1; i < graph.ops_size(); ++i) {
      v1::Op& op = *graph.mutable_ops(i);
      op.set_kind(
          KindOf(step_.ops[static_cast<size_t>(i - 1)], op.writes_size() > 0));
    }
  }

  v1::Category CategoryOf(const Life& life) const {
    const v1::StepGraph& graph = out_.graph;
    const v1::Phase born = graph.ops(life.writer).phase();
    if (life.writer == 0) return v1::CATEGORY_UNKNOWN;
    if (life.last < 0) {
      return born == v1::PHASE_BACKWARD    ? v1::CATEGORY_GRADIENT
             : born == v1::PHASE_OPTIMIZER ? v1::CATEGORY_OPTIMIZER_STATE
                                           : v1::CATEGORY_UNKNOWN;
    }
    const v1::Phase died = graph.ops(life.last).phase();
    return born == v1::PHASE_FORWARD && died == v1::PHASE_BACKWARD
               ? v1::CATEGORY_ACTIVATION
               : v1::CATEGORY_TEMPORARY;
  }

  void AddReads() {
    v1::StepGraph& graph = out_.graph;
    std::vector<std::vector<int32_t>> dies(op_count_);
    for (size_t s = 0; s < life_of_storage_.size(); ++s) {
      const Life& life = lives_[life_of_storage_[s]];
      if (life.last >= 0) {
        dies[static_cast<size_t>(life.last)].push_back(static_cast<int32_t>(s));
      }
    }
    std::unordered_map<int64_t, std::set<int32_t>> alive;  // by bytes
    std::unordered_map<int64_t, int> op_of_sequence;
    for (int i = 0; i < graph.ops_size(); ++i) {
      v1::Op& op = *graph.mutable_ops(i);
      std::set<int32_t> reads;
      if (i > 0) {
        const TraceOp& from = step_.ops[static_cast<size_t>(i - 1)];
        const auto forward = op_of_sequence.find(from.node_sequence);
        InferReads(from, alive,
                   forward == op_of_sequence.end() ? -1 : forward->second, op,
                   reads);
        if (!from.backward) {
          for (const int64_t n : from.sequences) op_of_sequence[n] = i;
        }
      }
      for (const uint32_t s : op.writes()) {
        alive[graph.storages(static_cast<int>(s)).bytes()].insert(
            static_cast<int32_t>(s));
      }
      for (const int32_t s : dies[static_cast<size_t>(i)]) {
        // The op that wrote it need not read it.
        if (lives_[life_of_storage_[static_cast<size_t>(s)]].writer != i) {
          reads.insert(s);
        }
        alive[graph.storages(s).bytes()].erase(s);
      }
      for (const int32_t s : reads) op.add_reads(static_cast<uint32_t>(s));
    }
  }

  void InferReads(const TraceOp& from,
                  const std::unordered_map<int64_t, std::set<int32_t>>& alive,
                  int forward, v1::Op& op, std::set<int32_t>& reads) {
    bool first = true;
    for (const int64_t bytes : from.input_bytes) {
      const int64_t rounded = (bytes + kRounding - 1) / kRounding * kRounding;
      const int32_t s =
          Choose(bytes, rounded, alive, reads, first ? -1 : forward);
      if (s >= 0 && first && op.name().ends_with("_")) {
        op.add_mutates(static_cast<uint32_t>(s));
      }
      first = false;
      if (s >= 0) reads.insert(s);
    }
  }

  int32_t Choose(int64_t bytes, int64_t rounded,
                 const std::unordered_map<int64_t, std::set<int32_t>>& alive,
                 const std::set<int32_t>& taken, int forward) {
    int32_t newest = -1;
    int32_t of_forward = -1;
    size_t candidates = 0;
    for (const int64_t size : {bytes, rounded}) {
      const auto found = alive.find(size);
      if (found == alive.end()) continue;
      size_t looked = 0;
      for (auto s = found->second.rbegin();
           s != found->second.rend() && looked < kMostCandidates;
           ++s, ++looked) {
        if (taken.contains(*s)) continue;
        ++candidates;
        newest = std::max(newest, *s);
        if (forward >= 0 && of_forward < 0 && Touches(forward, *s)) {
          of_forward = *s;
        }
      }
      if (rounded == bytes) break;
    }
    if (candidates == 0) {
      ++out_.unmatched;
      return -1;
    }
    ++(candidates == 1 ? out_.certain : out_.guessed);
    return of_forward >= 0 ? of_forward : newest;
  }

  bool Touches(int op, int32_t storage) const {
    const v1::Op& one = out_.graph.ops(op);
    const auto is = [&](uint32_t s) {
      return static_cast<int32_t>(s) == storage;
    };
    return std::any_of(one.reads().begin(), one.reads().end(), is) ||
           std::any_of(one.writes().begin(), one.writes().end(), is);
  }

  void Finish() {
    v1::StepGraph& graph = out_.graph;
    const MemorySummary& summary = trace_.summary();
    graph.set_name(summary.name);
    graph.set_source(StrCat("torch.profiler trace, ", summary.device));
    graph.set_flavour("trace");
    graph.set_static_bytes(
        std::max<int64_t>(0, summary.baseline_bytes - from_before_));
    graph.set_measured_peak_bytes(summary.peak_bytes);
    graph.set_measured_step_ns(summary.duration_ns);
    graph.set_timing(step_.has_kernels
                         ? "kernels"
                         : "host: the trace has no kernels of these ops");
    graph.set_note(
        StrCat("which op reads which tensor is not in a trace: of ",
               out_.certain + out_.guessed + out_.unmatched, " inputs ",
               out_.certain, " had one storage of their size, ", out_.guessed,
               " had several and got the likeliest, ", out_.unmatched,
               " had none (parameters); a plan of this graph is an estimate"));
  }

  const Trace& trace_;
  const TraceStep& step_;
  const size_t op_count_;
  const OpsByTime by_time_;
  std::vector<Life> lives_;
  std::vector<int32_t> storage_of_life_;
  std::vector<size_t> life_of_storage_;
  std::vector<int64_t> workspace_;
  int64_t from_before_ = 0;
  TraceGraph out_;
};

}  // namespace

StatusOr<TraceGraph> GraphOfTrace(const Trace& trace) {
  return Builder(trace).Build();
}

}  // namespace reprise::formats
