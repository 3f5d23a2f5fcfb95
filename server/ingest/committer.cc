// SPDX-License-Identifier: Apache-2.0
#include "server/ingest/committer.h"

#include <set>

#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"
#include "server/core/change.h"
#include "server/core/log.h"
#include "server/ingest/chunk_check.h"
#include "server/store/session_rows.h"
#include "server/store/window_rows.h"

namespace reprise::server {

namespace {
constexpr size_t kBatchItems = 64;
// Number of streams cached in memory; others are looked up in the store.
constexpr size_t kMaxRemembered = 4096;

void LogOpened(const Producer& producer, const v1::Hello& hello) {
  if (producer.caller.who.empty()) return;  // an import, which is logged there
  const auto& labels = hello.info().labels();
  const bool imported = labels.contains("imported");
  const auto name = labels.find("name");
  LogChange({.caller = producer.caller,
             .action = imported ? "import" : "session",
             .run_id = producer.run_id,
             .subject = imported && name != labels.end()
                            ? name->second
                            : StrCat("session ", producer.session_id)});
}

// Logs what the session's executor did with plans, in the name of the caller who
// opened the session.
void LogApplied(const Producer& producer, const v1::Columns& columns) {
  if (columns.checks().empty() && columns.states().empty()) return;
  Change change{.caller = producer.caller,
                .action = "withdraw",
                .run_id = producer.run_id};
  for (const v1::VerifyReport& check : columns.checks()) {
    if (!check.failed()) continue;
    change.subject = StrCat("plan ", check.plan_id());
    change.detail = StrCat("a check of step ", check.step(), " found ",
                           check.differing(), " differing values");
    LogChange(change);
  }
  for (const v1::PlanState& state : columns.states()) {
    const uint32_t what = state.state();
    // In the others the job runs without a plan, or left it.
    if (what < REPRISE_PLAN_APPLIED || what > REPRISE_PLAN_UNCHECKED) continue;
    change.action = what == REPRISE_PLAN_STOPPED ? "stop" : "apply";
    change.subject = StrCat("plan ", state.plan_id());
    change.outcome = what == REPRISE_PLAN_REFUSED     ? "refused"
                     : what == REPRISE_PLAN_UNCHECKED ? "unchecked"
                                                      : "ok";
    change.detail = state.why();
    LogChange(change);
  }
}

}  // namespace

Committer::Committer(Store& store, RunHub& hub, Metrics& metrics,
                     StepsObserver on_steps, int64_t max_run_bytes)
    : store_(store),
      hub_(hub),
      metrics_(metrics),
      on_steps_(std::move(on_steps)),
      quota_(max_run_bytes),
      thread_([this] { Loop(); }) {}

Committer::~Committer() { Stop(); }

void Committer::Push(CommitItem item) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      queue_.push_back(std::move(item));
      changed_.notify_one();
      return;
    }
  }
  item.done({.status = Unavailable("the server is shutting down")});
}

void Committer::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Committer::Loop() {
  std::vector<CommitItem> batch;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      while (!queue_.empty() && batch.size() < kBatchItems) {
        batch.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    CommitBatch(batch);
    batch.clear();
  }
}

void Committer::CommitBatch(std::span<const CommitItem> batch) {
  std::vector<CommitResult> results(batch.size());
  tentative_.clear();
  const Status status = store_.Write([&](Database& db) -> Status {
    for (size_t i = 0; i < batch.size(); ++i) {
      RETURN_IF_ERROR(Apply(db, batch[i], results[i]));
    }
    return OkStatus();
  });
  if (status.ok() && !store_.shared()) {
    for (const auto& [stream, seq] : tentative_) committed_[stream] = seq;
    if (committed_.size() > kMaxRemembered) committed_.clear();
  } else if (!status.ok() && batch.size() > 1) {
    for (size_t i = 0; i < batch.size(); ++i) CommitBatch(batch.subspan(i, 1));
    return;
  } else if (!status.ok()) {
    LogError("store_failed", StrCat("nothing was stored: ", status.message()));
  }

  std::set<std::string> changed;
  for (size_t i = 0; i < batch.size(); ++i) {
    const CommitItem& item = batch[i];
    // An item's own error concerns only itself; an error of the store concerns
    // all.
    if (!status.ok()) results[i] = {.status = status};
    if (results[i].status.ok()) {
      changed.insert(item.producer.run_id);
    }
    const auto* checked = std::get_if<CheckedChunk>(&item.what);
    if (checked != nullptr) Count(*checked, results[i]);
    if (results[i].stored && checked != nullptr) {
      LogApplied(item.producer, checked->columns);
    } else if (results[i].stored) {
      LogOpened(item.producer, std::get<v1::Hello>(item.what));
    }
    item.done(results[i]);
    if (results[i].stored && checked != nullptr &&
        checked->columns.steps_size() > 0 && on_steps_ &&
        !item.producer.forwarded) {
      on_steps_(item.producer.run_id, {checked->columns.steps().begin(),
                                       checked->columns.steps().end()});
    }
  }
  for (const std::string& run_id : changed) hub_.Notify(run_id);
}

void Committer::Count(const CheckedChunk& checked, const CommitResult& result) {
  if (!result.status.ok()) {
    metrics_.chunks_refused.Increment();
  } else if (result.stored) {
    metrics_.chunks_committed.Increment();
    metrics_.records_committed.Increment(checked.chunk.count());
  } else if (!result.hole) {
    metrics_.chunks_duplicate.Increment();
  }
}

Status Committer::Apply(Database& db, const CommitItem& item,
                        CommitResult& result) {
  const Producer& producer = item.producer;
  return std::visit(
      [&](const auto& what) { return Apply(db, producer, what, result); },
      item.what);
}

Status Committer::Apply(Database& db, const Producer& producer,
                        const v1::Caps& caps, CommitResult& /*result*/) {
  return SaveCapabilities(db, producer.session_id, caps);
}

Status Committer::Apply(Database& db, const Producer& producer,
                        const v1::Bye& bye, CommitResult& /*result*/) {
  return CloseSession(db, producer.session_id, bye, RealtimeNs());
}

Status Committer::Apply(Database& db, const Producer& producer,
                        const v1::Hello& hello, CommitResult& result) {
  const StatusOr<bool> opened =
      OpenSession(db, hello, producer.caller, RealtimeNs());
  const Code code = opened.status().code();
  if (code == Code::kFailedPrecondition || code == Code::kAlreadyExists) {
    result.status = opened.status();
    return OkStatus();
  }
  RETURN_IF_ERROR(opened.status());
  result.stored = *opened;
  ASSIGN_OR_RETURN(result.committed, CommittedOf(db, producer));
  return OkStatus();
}

Status Committer::Apply(Database& db, const Producer& producer,
                        const v1::Defs& defs, CommitResult& result) {
  int64_t bytes = 0;
  for (const v1::NameDef& name : defs.names()) {
    bytes += static_cast<int64_t>(name.text().size());
  }
  ASSIGN_OR_RETURN(const StoredRow stored, LoadStored(db, producer.run_id));
  if (!quota_.HasRoomForRecords(stored.bytes, bytes)) {
    return CountRefused(db, producer, stored, 0, bytes);
  }
  ASSIGN_OR_RETURN(const int64_t added,
                   SaveNames(db, producer.session_id, defs));
  ASSIGN_OR_RETURN(const int64_t names, CountNames(db, producer.session_id));
  if (names > kMaxNamesPerSession) {
    result.status = InvalidArgument(
        StrCat("defs: a session has at most ", kMaxNamesPerSession, " names"));
  }
  return AddStored(db, producer.run_id, added);
}

Status Committer::CountRefused(Database& db, const Producer& producer,
                               const StoredRow& before, uint64_t records,
                               int64_t bytes) {
  if (before.refused_bytes == 0) {
    LogWarning("quota_reached",
               StrCat("run ", producer.run_id, " has used its quota of ",
                      FormatBytes(quota_.max_bytes()),
                      " (--max-run-bytes); what it records from now on is "
                      "counted, not stored"),
               {{"run_id", producer.run_id},
                {"quota_bytes", quota_.max_bytes()},
                {"stored_bytes", before.bytes}});
  }
  metrics_.refused_bytes.Increment(static_cast<double>(bytes));
  return AddRefused(db, producer.run_id, records, bytes);
}

Status Committer::StoreChunk(Database& db, const Producer& producer,
                             const CheckedChunk& checked) {
  const auto body = static_cast<int64_t>(checked.chunk.body().size());
  const int64_t reports = ReportBytes(checked.columns);
  ASSIGN_OR_RETURN(const StoredRow stored, LoadStored(db, producer.run_id));
  if (quota_.HasRoomForRecords(stored.bytes, body + reports)) {
    RETURN_IF_ERROR(InsertChunk(db, producer, checked.chunk, checked.columns));
    return AddStored(db, producer.run_id, body + reports);
  }
  RETURN_IF_ERROR(InsertRefused(db, producer, checked.chunk.seq()));
  const bool keeps =
      reports > 0 && quota_.HasRoomForReports(stored.bytes, reports);
  if (keeps) {
    RETURN_IF_ERROR(InsertReports(db, producer, checked.columns));
    RETURN_IF_ERROR(AddStored(db, producer.run_id, reports));
  }
  return CountRefused(db, producer, stored, checked.chunk.count(),
                      keeps ? body : body + reports);
}

Status Committer::Apply(Database& db, const Producer& producer,
                        const CheckedChunk& checked, CommitResult& result) {
  ASSIGN_OR_RETURN(const uint64_t committed, CommittedOf(db, producer));
  const uint64_t seq = checked.chunk.seq();
  result.committed = committed;
  if (seq <= committed) return OkStatus();
  if (seq > committed + 1) {
    result.hole = true;
    return OkStatus();
  }
  RETURN_IF_ERROR(StoreChunk(db, producer, checked));
  RETURN_IF_ERROR(SaveCommitted(db, producer.session_id, producer.epoch, seq));
  tentative_[{producer.session_id, producer.epoch}] = seq;
  result.committed = seq;
  result.stored = true;
  return OkStatus();
}

Status Committer::Apply(Database& db, const Producer& producer,
                        const v1::Lost& lost, CommitResult& result) {
  ASSIGN_OR_RETURN(const uint64_t committed, CommittedOf(db, producer));
  result.committed = committed;
  if (lost.from() > committed + 1) {
    result.hole = true;
    return OkStatus();
  }
  if (lost.to() <= committed) return OkStatus();
  v1::Lost missing = lost;
  missing.set_from(committed + 1);
  RETURN_IF_ERROR(InsertLost(db, producer, missing));
  RETURN_IF_ERROR(
      SaveCommitted(db, producer.session_id, producer.epoch, lost.to()));
  tentative_[{producer.session_id, producer.epoch}] = lost.to();
  result.committed = lost.to();
  metrics_.chunks_lost.Increment(
      static_cast<double>(missing.to() - missing.from() + 1));
  return OkStatus();
}

StatusOr<uint64_t> Committer::CommittedOf(Database& db,
                                          const Producer& producer) {
  const Stream stream{producer.session_id, producer.epoch};
  if (const auto found = tentative_.find(stream); found != tentative_.end()) {
    return found->second;
  }
  if (const auto found = committed_.find(stream); found != committed_.end()) {
    return found->second;
  }
  ASSIGN_OR_RETURN(const uint64_t committed,
                   LoadCommitted(db, producer.session_id, producer.epoch));
  // Another daemon may take over the session, and commit more of it.
  if (!store_.shared()) committed_[stream] = committed;
  return committed;
}

}  // namespace reprise::server
