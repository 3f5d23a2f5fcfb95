// SPDX-License-Identifier: Apache-2.0
#include "server/store/window_rows.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/str_cat.h"
#include "server/store/session_rows.h"

namespace reprise::server {

namespace {

// Labels that describe capabilities; others are set by the job.
constexpr std::array<std::string_view, 11> kCapabilityLabels = {
    "adapter",  "torch",    "python", "cuda",  "device",         "executor",
    "op_marks", "imported", "meter",  "apply", "budget_at_start"};

// Says why the job takes no other budget while it runs, where it does not say
// that it does.
void AddApply(int64_t world, v1::SessionReport& report) {
  for (const v1::Capability& one : report.capabilities()) {
    if (one.name() == "apply" || one.name() == "imported") return;
  }
  v1::Capability& one = *report.add_capabilities();
  one.set_name("apply");
  one.set_value("no");
  one.set_why(world > 1
                  ? "the ranks of a job agree on their plan when it starts"
                  : "its executor takes a plan only when it starts");
}

// Returns why kernels are missing from a window, from the first session that
// reports it.
std::string MissingOf(const std::vector<v1::SessionReport>& reports) {
  for (const v1::SessionReport& report : reports) {
    std::string holder;
    for (const v1::Capability& one : report.capabilities()) {
      if (one.name() == "cupti_holder") holder = one.value();
    }
    for (const v1::Capability& one : report.capabilities()) {
      if (one.name() == "window" && one.value() == "paused") {
        return "the job gave CUPTI away with reprise.pause(); the window comes "
               "after reprise.resume()";
      }
      if (one.name() != "cupti" || one.why().empty()) continue;
      return StrCat(
          "kernels are not recorded: ", one.why(),
          holder.empty() || one.why().find(holder) != std::string::npos
              ? ""
              : StrCat(" (held by ", holder, ")"));
    }
  }
  return "";
}

}  // namespace

Status SaveCapabilities(Database& db, std::string_view session_id,
                        const v1::Caps& caps) {
  const std::string bytes = caps.SerializeAsString();
  return db.Run(
      "INSERT INTO capabilities VALUES (?, ?)"
      " ON CONFLICT (session_id) DO UPDATE SET report = excluded.report",
      session_id, Blob{bytes});
}

Status InsertWindow(Database& db, std::string_view run_id,
                    const v1::OpenWindow& window, int64_t now_ns) {
  return db.Run(
      "INSERT INTO windows (run_id, asked_ns, steps, at_step,"
      " after_row) VALUES (?1, ?2, ?3, ?4, (SELECT"
      " coalesce(max(id), 0) FROM steps WHERE run_id = ?1))",
      run_id, now_ns, window.steps(), window.at_step());
}

StatusOr<std::vector<v1::SessionReport>> LoadSessionReports(
    Database& db, std::string_view run_id) {
  ASSIGN_OR_RETURN(
      Statement select,
      db.Select("SELECT s.session_id, s.rank, s.pid, s.labels, c.report,"
                " s.world FROM sessions s LEFT JOIN capabilities c"
                " ON c.session_id = s.session_id"
                " WHERE s.run_id = ? ORDER BY s.rank, s.session_id LIMIT 1024",
                run_id));
  return select.All([](const Statement& row) {
    v1::SessionReport report;
    report.set_session_id(std::string(row.Text(0)));
    report.set_rank(static_cast<uint32_t>(row.Int(1)));
    report.set_pid(static_cast<uint32_t>(row.Int(2)));
    ForEachLabel(
        row.Text(3), [&](std::string_view key, std::string_view value) {
          const bool wanted =
              std::find(kCapabilityLabels.begin(), kCapabilityLabels.end(),
                        key) != kCapabilityLabels.end();
          if (!wanted || value.empty()) return;
          v1::Capability& one = *report.add_capabilities();
          one.set_name(std::string(key));
          one.set_value(std::string(value));
        });
    if (report.pid() != 0) AddApply(row.Int(5), report);
    v1::Caps caps;
    caps.ParseFromString(std::string(row.Bytes(4)));
    for (v1::Capability& one : *caps.mutable_capabilities()) {
      *report.add_capabilities() = std::move(one);
    }
    return report;
  });
}

StatusOr<uint64_t> LoadLastStep(Database& db, std::string_view run_id) {
  ASSIGN_OR_RETURN(const int64_t step,
                   LoadNumber(db,
                              "SELECT step FROM steps WHERE run_id = ?"
                              " ORDER BY id DESC LIMIT 1",
                              run_id));
  return static_cast<uint64_t>(step);
}

StatusOr<std::optional<v1::WindowStatus>> LoadWindow(
    Database& db, const v1::Run& run,
    const std::vector<v1::SessionReport>& reports) {
  std::optional<v1::WindowStatus> window;
  int64_t after = 0;
  {
    ASSIGN_OR_RETURN(const auto row,
                     db.First("SELECT asked_ns, steps, at_step, after_row"
                              " FROM windows WHERE run_id = ?"
                              " ORDER BY id DESC LIMIT 1",
                              run.run_id()));
    if (!row) return window;
    window.emplace();
    window->set_asked_ns(row->Int(0));
    window->set_steps(static_cast<uint32_t>(row->Int(1)));
    window->set_at_step(static_cast<uint64_t>(row->Int(2)));
    after = row->Int(3);
  }
  // Ranks report the same steps; the first `steps` of them are the window.
  ASSIGN_OR_RETURN(
      Statement count,
      db.Prepare("SELECT count(*), min(step), max(step) FROM (SELECT DISTINCT"
                 " step FROM steps WHERE run_id = ?1 AND id > ?2 AND window = 1"
                 " AND step >= ?3 ORDER BY step LIMIT ?4) AS recorded"));
  RETURN_IF_ERROR(
      count.BindAll(run.run_id(), after, window->at_step(), window->steps()));
  ASSIGN_OR_RETURN(const bool row, count.Step());
  const auto recorded = row ? static_cast<uint32_t>(count.Int(0)) : 0U;
  window->set_recorded(recorded);
  if (recorded > 0) {
    window->set_first_step(static_cast<uint64_t>(count.Int(1)));
    window->set_last_step(static_cast<uint64_t>(count.Int(2)));
  }
  window->set_why(MissingOf(reports));
  if (recorded >= window->steps()) {
    window->set_state(v1::WINDOW_STATE_DONE);
  } else if (run.state() == v1::RUN_STATE_RUNNING) {
    window->set_state(recorded > 0 ? v1::WINDOW_STATE_OPEN
                                   : v1::WINDOW_STATE_ASKED);
  } else {
    window->set_state(recorded > 0 ? v1::WINDOW_STATE_DONE
                                   : v1::WINDOW_STATE_REFUSED);
    window->set_why(StrCat("the job ended after ", recorded, " of ",
                           window->steps(), " steps"));
  }
  return window;
}

Status AddSessionsAndWindow(Database& db, v1::Run& run) {
  ASSIGN_OR_RETURN(const std::vector<v1::SessionReport> reports,
                   LoadSessionReports(db, run.run_id()));
  for (const v1::SessionReport& report : reports) *run.add_sessions() = report;
  ASSIGN_OR_RETURN(std::optional<v1::WindowStatus> window,
                   LoadWindow(db, run, reports));
  if (window) *run.mutable_window() = *std::move(window);
  return OkStatus();
}

}  // namespace reprise::server
