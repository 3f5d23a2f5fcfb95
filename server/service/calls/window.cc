// SPDX-License-Identifier: Apache-2.0
//
// StartWindow: stores the window, so that its results can be distinguished from
// those of earlier windows, then sends it to the run's processes.
#include "base/str_cat.h"
#include "server/core/log.h"
#include "server/service/calls/handlers.h"
#include "server/store/run_rows.h"
#include "server/store/window_rows.h"

namespace reprise::server {

namespace {

constexpr uint32_t kMostSteps = 1000;
// A window without any records after this time is considered over.
constexpr int64_t kPatienceNs = int64_t{60} * 1'000'000'000;

Status CheckRun(Database& db, const v1::Run& run,
                const v1::StartWindowRequest& request) {
  if (run.state() != v1::RUN_STATE_RUNNING) {
    return FailedPrecondition(
        StrCat("run ", run.run_id(),
               " has ended: there is no step left to be recorded"));
  }
  ASSIGN_OR_RETURN(const uint64_t last, LoadLastStep(db, run.run_id()));
  if (request.at_step() != 0 && request.at_step() <= last) {
    return InvalidArgument(StrCat("at_step: step ", request.at_step(),
                                  " has passed, the run is at ", last));
  }
  ASSIGN_OR_RETURN(const auto before, LoadWindow(db, run, {}));
  const bool waits = before && (before->state() == v1::WINDOW_STATE_ASKED ||
                                before->state() == v1::WINDOW_STATE_OPEN);
  const bool patient =
      waits && (before->at_step() > last ||
                RealtimeNs() - before->asked_ns() < kPatienceNs);
  if (patient) {
    return FailedPrecondition(
        StrCat("a window of ", before->steps(),
               " steps is under way; ask again when it is done"));
  }
  return OkStatus();
}

}  // namespace

StatusOr<v1::WindowStatus> StartWindow(Services& services,
                                       const v1::StartWindowRequest& request) {
  if (request.steps() < 1 || request.steps() > kMostSteps) {
    return InvalidArgument(
        StrCat("steps: must be 1 to ", kMostSteps, ", got ", request.steps()));
  }
  if (request.at_step() > uint64_t{1} << 62) {
    return InvalidArgument("at_step: no run gets that far");
  }
  v1::OpenWindow window;
  window.set_steps(request.steps());
  window.set_at_step(request.at_step());
  v1::Run run;
  RETURN_IF_ERROR(services.store.Write([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const std::string run_id,
                     ResolveRunId(db, request.run_id()));
    ASSIGN_OR_RETURN(run, LoadRun(db, run_id));
    RETURN_IF_ERROR(CheckRun(db, run, request));
    RETURN_IF_ERROR(InsertWindow(db, run_id, window, RealtimeNs()));
    // Nothing is stored if no session could be asked.
    if (services.open_window && services.open_window(run_id, window) > 0) {
      return OkStatus();
    }
    return FailedPrecondition(
        StrCat("no process of run ", run_id, " is connected to this server"));
  }));
  LogInfo("window_asked",
          StrCat("window of ", request.steps(), " steps asked of run ",
                 run.run_id()),
          {{"run_id", run.run_id()}, {"steps", int64_t{request.steps()}}});
  services.hub.Notify(run.run_id());
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    RETURN_IF_ERROR(AddSessionsAndWindow(db, run));
    return OkStatus();
  }));
  return run.window();
}

}  // namespace reprise::server
