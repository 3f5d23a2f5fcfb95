// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <reprise_agent.h>

#include <charconv>
#include <utility>

namespace reprise {
namespace {

constexpr uint32_t kSliceMs = 200;

std::string At(const std::string& list, size_t i) {
  return list + "[" + std::to_string(i) + "]";
}

std::string Quoted(const std::string& text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string List(const std::vector<int>& ids) {
  std::string out = "[";
  for (const int id : ids) {
    if (out.size() > 1) out += ",";
    out += std::to_string(id);
  }
  return out + "]";
}

// Returns the first error in a list of storages, or "" if there is none.
std::string CheckIds(const std::string& where, const std::vector<int>& ids,
                     int count) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= count) {
      return At(where, i) + ": there is no storage " + std::to_string(ids[i]) +
             ", the graph has " + std::to_string(count);
    }
    for (size_t j = 0; j < i; ++j) {
      if (ids[j] == ids[i]) {
        return At(where, i) + ": names storage " + std::to_string(ids[i]) +
               " twice";
      }
    }
  }
  return {};
}

bool Has(const std::vector<int>& ids, int id) {
  for (const int other : ids) {
    if (other == id) return true;
  }
  return false;
}

}  // namespace

int Graph::AddStorage(int64_t bytes, std::string name) {
  storages_.push_back({bytes, std::move(name)});
  return storage_count() - 1;
}

int Graph::AddOp(Op op) {
  ops_.push_back(std::move(op));
  return static_cast<int>(ops_.size()) - 1;
}

std::string Graph::Check() const {
  if (static_bytes_ < 0) return "static_bytes: must not be negative";
  for (size_t s = 0; s < storages_.size(); ++s) {
    if (storages_[s].bytes < 0) {
      return At("storages", s) + ".bytes: must not be negative, got " +
             std::to_string(storages_[s].bytes);
    }
  }
  std::vector<int> writer(storages_.size(), -1);
  for (size_t o = 0; o < ops_.size(); ++o) {
    const Op& op = ops_[o];
    const std::string where = At("ops", o);
    if (op.time_ns < 0) return where + ".time_ns: must not be negative";
    if (op.workspace_bytes < 0) {
      return where + ".workspace_bytes: must not be negative";
    }
    for (const auto& [name, ids] :
         {std::pair{".reads", &op.reads}, std::pair{".writes", &op.writes},
          std::pair{".mutates", &op.mutates}}) {
      std::string wrong = CheckIds(where + name, *ids, storage_count());
      if (!wrong.empty()) return wrong;
    }
    for (size_t i = 0; i < op.reads.size(); ++i) {
      if (writer[op.reads[i]] < 0) {
        return At(where + ".reads", i) + ": storage " +
               std::to_string(op.reads[i]) + " is not written by an earlier op";
      }
    }
    for (size_t i = 0; i < op.mutates.size(); ++i) {
      if (!Has(op.reads, op.mutates[i])) {
        return At(where + ".mutates", i) + ": storage " +
               std::to_string(op.mutates[i]) +
               " is not in the reads of this op";
      }
    }
    for (size_t i = 0; i < op.writes.size(); ++i) {
      int& first = writer[op.writes[i]];
      if (first >= 0) {
        return At(where + ".writes", i) + ": storage " +
               std::to_string(op.writes[i]) + " is already written by op " +
               std::to_string(first);
      }
      first = static_cast<int>(o);
    }
  }
  for (size_t s = 0; s < storages_.size(); ++s) {
    if (writer[s] < 0) return At("storages", s) + ": no op writes it";
  }
  return CheckIds("required", required_, storage_count());
}

std::string Graph::ToJson() const {
  std::string out = "{\"name\":" + Quoted(name_) + ",\"staticBytes\":\"" +
                    std::to_string(static_bytes_) + "\",\"storages\":[";
  for (size_t s = 0; s < storages_.size(); ++s) {
    if (s > 0) out += ",";
    out += "{\"id\":" + std::to_string(s) + ",\"bytes\":\"" +
           std::to_string(storages_[s].bytes) +
           "\",\"name\":" + Quoted(storages_[s].name) + "}";
  }
  out += "],\"ops\":[";
  for (size_t o = 0; o < ops_.size(); ++o) {
    const Op& op = ops_[o];
    if (o > 0) out += ",";
    out += "{\"id\":" + std::to_string(o) + ",\"name\":" + Quoted(op.name) +
           ",\"phase\":\"" +
           (op.backward ? "PHASE_BACKWARD" : "PHASE_FORWARD") +
           "\",\"kind\":\"" + (op.once ? "OP_KIND_ONCE" : "OP_KIND_PURE") +
           "\",\"timeNs\":\"" + std::to_string(op.time_ns) +
           "\",\"workspaceBytes\":\"" + std::to_string(op.workspace_bytes) +
           "\",\"reads\":" + List(op.reads) + ",\"writes\":" + List(op.writes) +
           ",\"mutates\":" + List(op.mutates) + "}";
  }
  return out + "],\"required\":" + List(required_) + "}";
}

bool ReadSchedule(const std::string& plan_json, const Graph& graph,
                  std::vector<int>* schedule) {
  const size_t key = plan_json.find("\"schedule\"");
  const size_t open = plan_json.find('[', key);
  const size_t close = plan_json.find(']', open);
  if (key == std::string::npos || close == std::string::npos) return false;
  const int ops = static_cast<int>(graph.ops().size());
  schedule->clear();
  const char* at = plan_json.data() + open + 1;
  const char* const end = plan_json.data() + close;
  while (at < end) {
    if (*at != '-' && (*at < '0' || *at > '9')) {
      ++at;
      continue;
    }
    int entry = 0;
    const auto [next, error] = std::from_chars(at, end, entry);
    if (error != std::errc() || entry >= ops ||
        entry < -graph.storage_count()) {
      return false;
    }
    schedule->push_back(entry);
    at = next;
  }
  return !schedule->empty();
}

Session::Session() { reprise_start(nullptr); }
Session::~Session() { reprise_stop(); }

Answer Session::Ask(const Graph& graph, const std::string& budget,
                    const std::string& executor, uint32_t timeout_ms) {
  Answer answer;
  answer.why = graph.Check();
  if (!answer.why.empty()) return answer;
  const std::string json = graph.ToJson();
  reprise_want want = {};
  want.struct_size = sizeof want;
  want.budget = budget.c_str();
  want.capabilities = executor.c_str();
  want.static_bytes = static_cast<uint64_t>(graph.static_bytes());
  uint64_t graph_id = 0;
  reprise_status status =
      reprise_graph_submit(json.data(), json.size(), &want, &graph_id);
  reprise_plan plan = {};
  for (uint32_t waited = 0; status == REPRISE_PENDING && waited < timeout_ms;
       waited += kSliceMs) {
    plan = {};
    plan.struct_size = sizeof plan;
    status = reprise_plan_wait(graph_id, 0, kSliceMs, &plan);
  }
  if (status != REPRISE_OK) {
    answer.why = status == REPRISE_INERT     ? "no daemon answers"
                 : status == REPRISE_PENDING ? "no plan came in time"
                                             : plan.why;
    if (status == REPRISE_EREFUSED) {
      answer.smallest_bytes = static_cast<int64_t>(plan.predicted_peak);
    }
    return answer;
  }
  const std::string text(static_cast<const char*>(plan.json), plan.json_bytes);
  answer.plan_id = plan.plan_id;
  answer.peak_bytes = static_cast<int64_t>(plan.predicted_peak);
  answer.time_ns = static_cast<int64_t>(plan.predicted_ns);
  reprise_plan_release(&plan);
  answer.ok = ReadSchedule(text, graph, &answer.schedule);
  if (!answer.ok) answer.why = "the plan has no schedule for this graph";
  return answer;
}

void Session::ReportStep(const Answer* answer, uint64_t step,
                         int64_t peak_bytes, int64_t step_ns) {
  const uint64_t plan_id = answer == nullptr ? 0 : answer->plan_id;
  if (plan_id != 0 && plan_id != applied_) {
    reprise_plan_applied(plan_id, 0, static_cast<uint64_t>(answer->peak_bytes));
    applied_ = plan_id;
  }
  reprise_step(step);
  reprise_step_report report = {};
  report.struct_size = sizeof report;
  report.flags = plan_id == 0 ? 0 : REPRISE_STEP_PLANNED;
  report.step = step;
  report.plan_id = plan_id;
  report.step_ns = static_cast<uint64_t>(step_ns);
  report.peak_bytes = static_cast<uint64_t>(peak_bytes);
  reprise_step_done(&report);
}

void Session::ReportCheck(const Answer& answer, uint64_t step, uint32_t checked,
                          uint32_t differing) {
  reprise_verify_report report = {};
  report.struct_size = sizeof report;
  report.flags =
      differing == 0 ? REPRISE_VERIFY_BITWISE : REPRISE_VERIFY_FAILED;
  report.step = step;
  report.plan_id = answer.plan_id;
  report.checked = checked;
  report.differing = differing;
  reprise_verify(&report);
}

}  // namespace reprise
