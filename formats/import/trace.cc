// SPDX-License-Identifier: Apache-2.0
#include "formats/import/trace.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>

#include "base/str_cat.h"

namespace reprise::formats {

namespace {

constexpr size_t kMostEvents = 4'000'000;
constexpr size_t kMostOps = 1'000'000;
constexpr size_t kMostThreads = 4096;
constexpr int64_t kMostEventBytes = int64_t{1} << 50;
constexpr int64_t kMostTotal = int64_t{1} << 56;
constexpr int64_t kMostStepNs = 1'000'000'000'000'000;
constexpr std::string_view kStepPrefix = "ProfilerStep#";
constexpr std::string_view kModulePrefix = "nn.Module: ";
// Of Python frames; what is beyond is left out.
constexpr size_t kMostPythonFrames = 1'000'000;
constexpr size_t kMostLinesBytes = 4096;
constexpr size_t kMostFrameBytes = 64 << 20;  // of all texts, and of all stacks
constexpr size_t kMostOpenFrames = 1024;

struct Span {
  int64_t start_ns = 0, end_ns = 0;
};

class Threads {
 public:
  StatusOr<uint32_t> Id(const TraceEvent& event) {
    const auto [place, fresh] =
        ids_.try_emplace(StrCat(event.process, " ", event.thread),
                         static_cast<uint32_t>(ids_.size()));
    if (fresh && ids_.size() > kMostThreads) {
      return ResourceExhausted(StrCat("more than ", kMostThreads, " threads"));
    }
    return place->second;
  }

 private:
  std::unordered_map<std::string, uint32_t> ids_;
};

// Returns whether the event is an op. A category may be a list.
bool IsOp(const TraceEvent& event) {
  return event.category == "cpu_op" || event.category.starts_with("cpu_op,");
}

struct RawAllocation {
  uint32_t process = 0;
  MemoryEvent event;
  int64_t total = -1, reserved = 0;
  int64_t device_type = 0, device_id = -1;
};

// ---- First pass: steps, memory, extent -------------------------------------

// What one process of the trace did, and when.
struct Process {
  uint32_t number = 0;
  std::map<int64_t, Span> steps;
  Span whole{.start_ns = INT64_MAX, .end_ns = INT64_MIN};
  bool has_ops = false;
  bool at_zero = false;  // an op begins at 0
};

// Events of a trace whose times count from its own begin may start at 0; among
// those of a clock, 0 is no time.
constexpr int64_t kLatestBegin = int64_t{3600} * 1'000'000'000;

struct Outline {
  std::map<std::string, Process> processes;
  std::vector<RawAllocation> memory;
  uint64_t wrong = 0;  // events whose time cannot be
  uint64_t at_zero = 0;
  int64_t first_ns = INT64_MAX;  // of those that are not at 0

  // Whether an event at 0 is to be left out.
  bool IsWrong(int64_t start_ns) const {
    return start_ns == 0 && first_ns != INT64_MAX && first_ns > kLatestBegin;
  }

  // Leaves out the events without a time, now that all have been seen.
  void Settle() {
    if (!IsWrong(0)) {
      for (auto& [name, process] : processes) {
        if (process.at_zero) process.whole.start_ns = 0;
      }
      return;
    }
    wrong += at_zero;
    std::erase_if(memory, [this](const RawAllocation& one) {
      return IsWrong(one.event.time_ns);
    });
    for (auto& [name, process] : processes) {
      std::erase_if(process.steps, [this](const auto& step) {
        return IsWrong(step.second.start_ns);
      });
    }
  }

  Status Take(const TraceEvent& event, Threads& threads) {
    const bool is_memory = event.name == "[memory]" && event.bytes != 0;
    const bool is_op = IsOp(event);
    const bool is_step = event.category == "user_annotation" &&
                         event.phase == "X" &&
                         event.name.starts_with(kStepPrefix);
    if (!is_memory && !is_op && !is_step) return OkStatus();
    if (event.has_wrong_time) {
      ++wrong;
      return OkStatus();
    }
    if (event.start_ns == 0) {
      ++at_zero;
    } else {
      first_ns = std::min(first_ns, event.start_ns);
    }
    const auto [place, fresh] = processes.try_emplace(event.process);
    Process& process = place->second;
    if (fresh) process.number = static_cast<uint32_t>(processes.size());
    if (fresh && processes.size() > kMostThreads) {
      return ResourceExhausted(
          StrCat("more than ", kMostThreads, " processes"));
    }
    if (is_op || is_step) {
      const Span span{event.start_ns, event.start_ns + event.duration_ns};
      if (is_op) {
        process.has_ops = true;
        process.at_zero |= span.start_ns == 0;
        if (span.start_ns != 0) {
          process.whole.start_ns =
              std::min(process.whole.start_ns, span.start_ns);
        }
        process.whole.end_ns = std::max(process.whole.end_ns, span.end_ns);
      } else if (process.steps.size() < 100'000) {
        int64_t number = 0;
        const char* first = event.name.data() + kStepPrefix.size();
        std::from_chars(first, event.name.data() + event.name.size(), number);
        process.steps[number] = span;
      }
    }
    if (!is_memory) return OkStatus();
    if (event.bytes > kMostEventBytes || event.bytes < -kMostEventBytes) {
      return InvalidArgument(
          StrCat("a memory event of ", event.bytes, " bytes"));
    }
    if (memory.size() == kMostEvents) {
      return ResourceExhausted(StrCat("more than ", kMostEvents,
                                      " memory events; profile fewer steps"));
    }
    ASSIGN_OR_RETURN(const uint32_t thread, threads.Id(event));
    memory.push_back(
        {.process = process.number,
         .event = {.time_ns = event.start_ns,
                   .address = event.address,
                   .bytes = event.bytes,
                   .thread = thread},
         .total = std::min(event.total_allocated, kMostTotal),
         .reserved = std::clamp<int64_t>(event.total_reserved, 0, kMostTotal),
         .device_type = event.device_type,
         .device_id = event.device_id});
    return OkStatus();
  }

  // Returns the process whose ops to use: that of the memory events or, if it
  // has no ops (some tools write them separately), one that has.
  StatusOr<std::string> ProcessOf(int64_t device_type,
                                  int64_t device_id) const {
    for (const RawAllocation& one : memory) {
      if (one.device_type != device_type || one.device_id != device_id) {
        continue;
      }
      for (const auto& [name, process] : processes) {
        if (process.number == one.process && process.has_ops) return name;
      }
      break;
    }
    for (const auto& [name, process] : processes) {
      if (process.has_ops) return name;
    }
    return NotFound(
        "has no operator calls; profile with activities=[ProfilerActivity.CPU, "
        "...] and let at least one step pass");
  }
};

// ---- Second pass: the ops of the step --------------------------------------

struct Call {
  std::string name = {};
  int64_t start_ns = 0, end_ns = 0;
  int64_t external_id = -1, sequence = -1;
  uint32_t thread = 0;
  bool annotation = false;
  std::string part = {};  // of the step, if the trace has it
  std::vector<int64_t> input_bytes = {};
  int64_t frame = -1;  // a Python frame: its text in StepReading.frame_texts
};

// Returns "model.py:12 forward" of "model.py(12): forward"; empty for what is no
// line of a file. A trace names files of PyTorch without their folder.
std::string FrameText(std::string_view name) {
  if (name.starts_with(kModulePrefix)) return std::string(name.substr(0, 256));
  const size_t end = name.find("): ");
  const size_t begin = name.rfind('(', end);
  if (name.starts_with('<') || end == std::string_view::npos ||
      begin == std::string_view::npos || begin == 0) {
    return "";
  }
  const std::string_view path = name.substr(0, begin);
  return StrCat(path.starts_with("torch/") ? "/" : "", path.substr(0, 512), ":",
                name.substr(begin + 1, end - begin - 1).substr(0, 16), " ",
                name.substr(end + 3).substr(0, 256));
}

// Returns whether a call only surrounds others: autograd's frames, and names
// without a library.
bool IsFrame(const Call& call) {
  return call.annotation || call.name.starts_with("autograd::") ||
         call.name.starts_with("torch::autograd::") ||
         call.name.find("::") == std::string::npos;
}

struct StepReading {
  std::string process;
  Span span;
  std::vector<Call> calls;
  std::vector<std::pair<int64_t, int64_t>> kernels;  // external id, ns
  std::vector<RecordedKernel> drawn;
  std::vector<std::string> names;  // of kernels
  std::unordered_map<std::string, uint32_t> name_ids;
  std::vector<std::string> frame_texts;
  std::unordered_map<std::string, int64_t> frame_ids;
  size_t ops = 0, frames = 0;  // of `calls`
  size_t frame_bytes = 0, stack_bytes = 0;
  bool lacks_frames = false;

  // The number that a text ends with: "stream 7" or "7"; 0 without one.
  static uint64_t NumberIn(const std::string& text) {
    const size_t last = text.find_last_not_of("0123456789");
    const size_t from = last == std::string::npos ? 0 : last + 1;
    uint64_t number = 0;
    std::from_chars(text.data() + from, text.data() + text.size(), number);
    return number;
  }

  // Keeps a kernel that runs within the step.
  void Draw(const TraceEvent& event) {
    const int64_t duration_ns =
        std::clamp<int64_t>(event.duration_ns, 0, kMostStepNs);
    if (event.start_ns >= span.end_ns ||
        event.start_ns + duration_ns < span.start_ns) {
      return;
    }
    const auto [name, fresh] = name_ids.try_emplace(
        event.name.substr(0, 256), static_cast<uint32_t>(names.size()));
    if (fresh) names.push_back(name->first);
    drawn.push_back({.start_ns = event.start_ns - span.start_ns,
                     .duration_ns = duration_ns,
                     .stream = NumberIn(event.thread),
                     .device = static_cast<uint32_t>(
                         std::min<uint64_t>(NumberIn(event.process), 255)),
                     .name = name->second,
                     .kind = event.category == "kernel" ? v1::RECORD_KIND_KERNEL
                             : event.category == "gpu_memcpy"
                                 ? v1::RECORD_KIND_COPY
                                 : v1::RECORD_KIND_SET});
  }

  Status Take(const TraceEvent& event, Threads& threads) {
    if (event.phase != "X") return OkStatus();
    const bool annotation = event.category == "user_annotation";
    if (event.category == "kernel" || event.category == "gpu_memcpy" ||
        event.category == "gpu_memset") {
      if (kernels.size() == kMostEvents || drawn.size() == kMostEvents) {
        return ResourceExhausted(StrCat("more than ", kMostEvents, " kernels"));
      }
      Draw(event);
      if (event.external_id < 0) return OkStatus();
      kernels.emplace_back(event.external_id,
                           std::max<int64_t>(event.duration_ns, 0));
      return OkStatus();
    }
    const bool frame = event.category == "python_function";
    if ((!annotation && !frame && !IsOp(event)) || event.process != process) {
      return OkStatus();
    }
    if (frame) return TakeFrame(event, threads);
    if (event.duration_ns < 0 || event.start_ns < span.start_ns ||
        event.start_ns >= span.end_ns) {
      return OkStatus();
    }
    if (annotation && !event.name.starts_with("Optimizer.step")) {
      return OkStatus();
    }
    if (ops++ == kMostOps) {
      return ResourceExhausted(StrCat("more than ", kMostOps,
                                      " calls in one step; choose one with "
                                      "--step, or call profiler.step()"));
    }
    ASSIGN_OR_RETURN(const uint32_t thread, threads.Id(event));
    calls.push_back(
        {.name = event.name.substr(0, 256),
         .start_ns = event.start_ns - span.start_ns,
         .end_ns = std::min(event.start_ns + event.duration_ns, span.end_ns) -
                   span.start_ns,
         .external_id = event.external_id,
         .sequence = event.sequence,
         .thread = thread,
         .annotation = annotation,
         .part = event.part,
         .input_bytes = event.input_bytes});
    return OkStatus();
  }

  // Keeps a Python frame that is open in the step; some may have begun before.
  Status TakeFrame(const TraceEvent& event, Threads& threads) {
    const int64_t end_ns = event.start_ns + event.duration_ns;
    if (event.duration_ns < 0 || end_ns <= span.start_ns ||
        event.start_ns >= span.end_ns) {
      return OkStatus();
    }
    std::string text = FrameText(event.name);
    if (text.empty()) return OkStatus();
    std::replace(text.begin(), text.end(), '\n', ' ');
    if (frames == kMostPythonFrames ||
        frame_bytes + text.size() > kMostFrameBytes) {
      lacks_frames = true;
      return OkStatus();
    }
    ++frames;
    const auto [place, fresh] = frame_ids.try_emplace(
        std::move(text), static_cast<int64_t>(frame_texts.size()));
    if (fresh) {
      frame_texts.push_back(place->first);
      frame_bytes += place->first.size();
    }
    ASSIGN_OR_RETURN(const uint32_t thread, threads.Id(event));
    calls.push_back({.start_ns = event.start_ns - span.start_ns,
                     .end_ns = end_ns - span.start_ns,
                     .thread = thread,
                     .frame = place->second});
    return OkStatus();
  }

  // Returns the stack of an op that is called in these frames.
  TraceStack StackOf(const std::vector<size_t>& open) const {
    TraceStack stack;
    std::vector<std::string> modules;  // innermost first
    for (size_t i = open.size(); i-- > 0;) {
      const int64_t frame = calls[open[i]].frame;
      if (frame < 0) continue;
      const std::string& text = frame_texts[static_cast<size_t>(frame)];
      if (stack.lines.size() + text.size() > kMostLinesBytes) break;
      stack.lines += StrCat(stack.lines.empty() ? "" : "\n", text);
      if (text.starts_with(kModulePrefix)) {
        modules.push_back(text.substr(kModulePrefix.size()));
      }
      const bool own = text.find(".py:") != std::string::npos &&
                       text.find("/torch/") == std::string::npos;
      if (own && stack.owner.empty()) {
        stack.owner = text.substr(text.rfind('/', text.find(".py:")) + 1);
      }
    }
    if (!modules.empty()) modules.pop_back();
    for (size_t i = modules.size(); i-- > 0;) {
      stack.module += StrCat(stack.module.empty() ? "" : ".", modules[i]);
    }
    return stack;
  }

  // Returns the number of a stack, which is added if it is new.
  size_t AddStack(TraceStack stack,
                  std::unordered_map<std::string, size_t>& ids,
                  std::vector<TraceStack>& stacks) {
    const auto known = ids.find(stack.lines);
    if (known != ids.end()) return known->second;
    stack_bytes += stack.lines.size();
    if (stack_bytes > kMostFrameBytes) {
      lacks_frames = true;
      return 0;
    }
    ids.emplace(stack.lines, stacks.size());
    stacks.push_back(std::move(stack));
    return stacks.size() - 1;
  }

  // Makes ops of the outermost calls; calls inside them contribute autograd's
  // sequence numbers and kernels.
  void MakeOps(TraceStep& step) {
    std::sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) {
      if (a.thread != b.thread) return a.thread < b.thread;
      if (a.start_ns != b.start_ns) return a.start_ns < b.start_ns;
      return a.end_ns > b.end_ns;
    });
    std::unordered_map<int64_t, size_t> op_of_external;
    std::unordered_map<std::string, size_t> stack_ids = {{"", 0}};
    step.stacks.resize(1);
    std::vector<size_t> open;  // frames of this thread
    size_t op = SIZE_MAX;      // the open op, or SIZE_MAX
    for (size_t i = 0; i < calls.size(); ++i) {
      Call& call = calls[i];
      if (i > 0 && calls[i - 1].thread != call.thread) {
        open.clear();
        op = SIZE_MAX;
      }
      while (!open.empty() && calls[open.back()].end_ns <= call.start_ns) {
        open.pop_back();
      }
      if (op != SIZE_MAX && step.ops[op].end_ns <= call.start_ns) op = SIZE_MAX;
      if (call.frame >= 0) {
        if (op == SIZE_MAX && open.size() < kMostOpenFrames) open.push_back(i);
        continue;
      }
      if (op == SIZE_MAX) {
        if (IsFrame(call) && HasCallsInside(i)) {
          if (open.size() < kMostOpenFrames) open.push_back(i);
          continue;
        }
        op = step.ops.size();
        TraceOp& made = step.ops.emplace_back();
        made.name = call.name;
        made.start_ns = call.start_ns;
        made.end_ns = call.end_ns;
        made.thread = call.thread;
        made.input_bytes = std::move(call.input_bytes);
        made.stack = AddStack(StackOf(open), stack_ids, step.stacks);
        made.backward = call.part == "backward";
        made.optimizer = call.part == "optimizer";
        for (const size_t f : open) {
          const Call& frame = calls[f];
          made.optimizer = made.optimizer || frame.annotation;
          if (frame.name.starts_with("autograd::engine::")) {
            made.backward = true;
            made.node_sequence = frame.sequence;
          }
        }
      }
      if (call.sequence >= 0) step.ops[op].sequences.push_back(call.sequence);
      if (call.external_id >= 0) op_of_external[call.external_id] = op;
    }
    for (const auto& [external, ns] : kernels) {
      const auto found = op_of_external.find(external);
      if (found == op_of_external.end()) continue;
      step.has_kernels = true;
      int64_t& sum = step.ops[found->second].kernel_ns;
      sum = std::min(sum + ns, kMostStepNs);
    }
    std::stable_sort(step.ops.begin(), step.ops.end(),
                     [](const TraceOp& a, const TraceOp& b) {
                       return a.start_ns < b.start_ns;
                     });
  }

  bool HasCallsInside(size_t i) const {
    return i + 1 < calls.size() && calls[i + 1].thread == calls[i].thread &&
           calls[i + 1].start_ns < calls[i].end_ns;
  }
};

// Returns the device whose memory is shown: the requested one, else the GPU
// with the most events, else the CPU.
StatusOr<std::pair<int64_t, int64_t>> ChooseDevice(
    const std::vector<RawAllocation>& memory, std::optional<int> asked) {
  std::map<std::pair<int64_t, int64_t>, size_t> counts;
  for (const RawAllocation& one : memory) {
    ++counts[{one.device_type, one.device_id}];
  }
  std::pair<int64_t, int64_t> best{-1, -1};
  size_t most = 0;
  for (const auto& [device, count] : counts) {
    if (asked && (device.first == 0 || device.second != *asked)) continue;
    const bool upgrade = device.first > 0 && best.first <= 0;
    if (upgrade || (count > most && !(device.first == 0 && best.first > 0))) {
      best = device;
      most = count;
    }
  }
  if (most == 0) {
    return NotFound(asked ? StrCat("has no memory events of device ", *asked)
                          : std::string("has no memory events; profile with "
                                        "profile_memory=True"));
  }
  return best;
}

}  // namespace

StatusOr<Trace> Trace::Open(const OpenSource& open, std::string name,
                            std::optional<int64_t> step,
                            std::optional<int> device) {
  Threads threads;
  Outline outline;
  {
    ASSIGN_OR_RETURN(ByteSource source, open());
    RETURN_IF_ERROR(ReadTraceJson(source, [&](const TraceEvent& event) {
      return outline.Take(event, threads);
    }));
  }
  outline.Settle();
  RETURN_IF_ERROR(outline.ProcessOf(0, 0).status());  // fails without ops
  ASSIGN_OR_RETURN(const auto where, ChooseDevice(outline.memory, device));

  Trace made;
  MemorySummary& summary = made.summary_;
  StepReading reading;
  ASSIGN_OR_RETURN(reading.process,
                   outline.ProcessOf(where.first, where.second));
  const Process& process = outline.processes[reading.process];
  reading.span = process.whole;
  if (step) {
    const auto found = process.steps.find(*step);
    if (found == process.steps.end()) {
      return NotFound(
          process.steps.empty()
              ? std::string("has no steps; call profiler.step() in the loop")
              : StrCat("has no step ", *step, ", but ",
                       process.steps.begin()->first, " to ",
                       process.steps.rbegin()->first));
    }
    reading.span = found->second;
  } else if (!process.steps.empty()) {
    reading.span = process.steps.rbegin()->second;
  } else {
    summary.notes.push_back(
        "it has no ProfilerStep marks, so all of it counts as one step");
  }
  if (reading.span.end_ns <= reading.span.start_ns ||
      reading.span.end_ns - reading.span.start_ns > kMostStepNs) {
    return InvalidArgument("a step that takes no time, or more than ten days");
  }
  {
    ASSIGN_OR_RETURN(ByteSource source, open());
    RETURN_IF_ERROR(ReadTraceJson(source, [&](const TraceEvent& event) {
      if (event.has_wrong_time || outline.IsWrong(event.start_ns)) {
        return OkStatus();
      }
      return reading.Take(event, threads);
    }));
  }
  TraceStep& into = made.step_;
  into.duration_ns = reading.span.end_ns - reading.span.start_ns;
  into.is_device = where.first > 0;
  reading.MakeOps(into);
  into.kernels = std::move(reading.drawn);
  into.kernel_names = std::move(reading.names);
  std::stable_sort(into.kernels.begin(), into.kernels.end(),
                   [](const RecordedKernel& a, const RecordedKernel& b) {
                     return a.start_ns < b.start_ns;
                   });

  std::stable_sort(outline.memory.begin(), outline.memory.end(),
                   [](const RawAllocation& a, const RawAllocation& b) {
                     return a.event.time_ns < b.event.time_ns;
                   });
  // What was alive when the step began: the total after the last event before
  // it, or the total that the first event in it found.
  MemorySum before, within;
  int64_t total_before = -1;
  for (const RawAllocation& one : outline.memory) {
    if (one.device_type != where.first || one.device_id != where.second) {
      continue;
    }
    MemoryEvent event = one.event;
    event.time_ns -= reading.span.start_ns;
    if (event.time_ns < 0) {
      if (!before.Add(0, event.bytes)) break;
      total_before = one.total;
      continue;
    }
    if (event.time_ns > into.duration_ns) break;
    if (total_before < 0 && into.events.empty() && one.total >= 0) {
      total_before = one.total - one.event.bytes;
    }
    summary.reserved_bytes = one.reserved;
    if (!within.Add(event.time_ns, event.bytes)) {
      return InvalidArgument("sizes that add up to more than 2^62 bytes");
    }
    into.events.push_back(event);
  }
  if (into.events.empty()) {
    return NotFound("has no memory events in the step that was chosen");
  }
  into.baseline_bytes =
      std::clamp<int64_t>(total_before, -within.lowest, kMostTotal);

  summary.name = std::move(name);
  summary.device =
      into.is_device ? StrCat("cuda:", where.second) : std::string("cpu");
  summary.format = "profiler trace";
  summary.events = into.events.size();
  summary.ops = into.ops.size();
  summary.duration_ns = into.duration_ns;
  summary.baseline_bytes = into.baseline_bytes;
  summary.peak_bytes = into.baseline_bytes + within.highest;
  summary.peak_at_ns = within.highest_at_ns;
  if (outline.wrong > 0) {
    summary.notes.push_back(
        StrCat(outline.wrong, outline.wrong == 1
                                  ? " of its events has a time that cannot be, "
                                    "and is left out"
                                  : " of its events have times that cannot be, "
                                    "and are left out"));
  }
  if (reading.lacks_frames) {
    summary.notes.push_back(
        "it has more Python frames than are read, so some of its ops have no "
        "stack, or a shorter one");
  }
  if (!into.is_device) {
    summary.notes.push_back(
        "of the CPU's memory a trace knows only what was allocated while it "
        "was profiled: parameters from before are missing");
  }
  return made;
}

}  // namespace reprise::formats
