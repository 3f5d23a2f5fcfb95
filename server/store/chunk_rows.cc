// SPDX-License-Identifier: Apache-2.0
#include "server/store/chunk_rows.h"

#include "base/str_cat.h"

namespace reprise::server {
namespace {

// Four times as many as a session may have.
constexpr int64_t kMostNameId = 1 << 20;

}  // namespace

Status InsertChunk(Database& db, const Producer& producer,
                   const v1::Chunk& chunk, const v1::Columns& columns) {
  RETURN_IF_ERROR(
      db.Run("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
             " ON CONFLICT DO NOTHING",
             producer.session_id, producer.epoch, chunk.seq(), chunk.t0_ns(),
             chunk.t1_ns(), chunk.count(), chunk.dropped_before(),
             chunk.layout(), Blob{chunk.body()}));
  if (db.changes() == 0) return OkStatus();  // already stored
  RETURN_IF_ERROR(InsertReports(db, producer, columns));
  ASSIGN_OR_RETURN(Statement count,
                   db.Prepare("UPDATE runs SET records = records + ?,"
                              " dropped = dropped + ? WHERE run_id = ?"));
  return count.Run(chunk.count(), chunk.dropped_before(), producer.run_id);
}

Status InsertReports(Database& db, const Producer& producer,
                     const v1::Columns& columns) {
  if (columns.steps_size() > 0) {
    ASSIGN_OR_RETURN(
        Statement insert,
        db.Prepare("INSERT INTO steps (run_id, session_id, step, planned,"
                   " window, report) VALUES (?, ?, ?, ?, ?, ?)"));
    for (const v1::StepReport& report : columns.steps()) {
      const std::string bytes = report.SerializeAsString();
      RETURN_IF_ERROR(insert.Run(producer.run_id, producer.session_id,
                                 report.step(), report.planned(),
                                 report.window(), Blob{bytes}));
    }
  }
  if (columns.checks_size() > 0) {
    ASSIGN_OR_RETURN(Statement insert,
                     db.Prepare("INSERT INTO checks (run_id, session_id, step,"
                                " plan_id, failed, report)"
                                " VALUES (?, ?, ?, ?, ?, ?)"));
    for (const v1::VerifyReport& report : columns.checks()) {
      const std::string bytes = report.SerializeAsString();
      RETURN_IF_ERROR(insert.Run(producer.run_id, producer.session_id,
                                 report.step(), report.plan_id(),
                                 report.failed(), Blob{bytes}));
    }
  }
  if (columns.states_size() > 0) {
    ASSIGN_OR_RETURN(
        Statement insert,
        db.Prepare("INSERT INTO plan_states (run_id, session_id, plan_id,"
                   " state, why, at_ns, own_ns, peak_bytes)"
                   " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"));
    for (const v1::PlanState& state : columns.states()) {
      RETURN_IF_ERROR(insert.Run(
          producer.run_id, producer.session_id, state.plan_id(), state.state(),
          state.why(), state.at_ns(), state.own_ns(), state.peak_bytes()));
    }
  }
  if (producer.rank == 0 && columns.steps_size() > 0) {
    RETURN_IF_ERROR(db.Run("UPDATE runs SET steps = steps + ? WHERE run_id = ?",
                           columns.steps_size(), producer.run_id));
  }
  return InsertMoments(db, producer, columns);
}

Status InsertLost(Database& db, const Producer& producer,
                  const v1::Lost& lost) {
  RETURN_IF_ERROR(
      db.Run("INSERT INTO lost VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
             producer.session_id, producer.epoch, lost.from(), lost.to(),
             lost.reason()));
  if (db.changes() == 0) return OkStatus();
  return db.Run(
      "UPDATE runs SET lost_chunks = lost_chunks + ? WHERE run_id = ?",
      lost.to() - lost.from() + 1, producer.run_id);
}

StatusOr<std::vector<StepRow>> LoadSteps(Database& db, std::string_view run_id,
                                         int64_t after) {
  ASSIGN_OR_RETURN(Statement select,
                   db.Select("SELECT id, session_id, report FROM steps"
                             " WHERE run_id = ? AND id > ? ORDER BY id",
                             run_id, after));
  return select.All([](const Statement& row) {
    StepRow step;
    step.id = row.Int(0);
    step.session_id = row.Text(1);
    step.report.ParseFromString(std::string(row.Bytes(2)));
    return step;
  });
}

StatusOr<std::vector<CheckRow>> LoadChecks(Database& db,
                                           std::string_view run_id,
                                           int64_t after) {
  ASSIGN_OR_RETURN(Statement select,
                   db.Select("SELECT id, report FROM checks"
                             " WHERE run_id = ? AND id > ? ORDER BY id",
                             run_id, after));
  return select.All([](const Statement& row) {
    CheckRow check;
    check.id = row.Int(0);
    check.report.ParseFromString(std::string(row.Bytes(1)));
    return check;
  });
}

StatusOr<std::vector<StateRow>> LoadPlanStates(Database& db,
                                               std::string_view run_id,
                                               int64_t after) {
  ASSIGN_OR_RETURN(Statement select,
                   db.Select("SELECT id, plan_id, state, why, at_ns, own_ns,"
                             " peak_bytes FROM plan_states"
                             " WHERE run_id = ? AND id > ? ORDER BY id",
                             run_id, after));
  return select.All([](const Statement& row) {
    StateRow state;
    state.id = row.Int(0);
    state.report.set_plan_id(std::string(row.Text(1)));
    state.report.set_state(static_cast<uint32_t>(row.Int(2)));
    state.report.set_why(std::string(row.Text(3)));
    state.report.set_at_ns(row.Int(4));
    state.report.set_own_ns(row.Int(5));
    state.report.set_peak_bytes(row.Int(6));
    return state;
  });
}

StatusOr<std::optional<FailedCheck>> FindFailedCheck(Database& db,
                                                     std::string_view plan_id) {
  ASSIGN_OR_RETURN(const auto row, db.First("SELECT run_id, step FROM checks"
                                            " WHERE failed = 1 AND plan_id = ?"
                                            " ORDER BY id LIMIT 1",
                                            plan_id));
  if (!row) return std::optional<FailedCheck>();
  return std::optional<FailedCheck>(
      {.run_id = std::string(row->Text(0)),
       .step = static_cast<uint64_t>(row->Int(1))});
}

StatusOr<StepRow> LoadWindowedStep(Database& db, std::string_view run_id,
                                   bool planned) {
  ASSIGN_OR_RETURN(const auto row,
                   db.First("SELECT id, session_id, report FROM steps"
                            " WHERE window = 1 AND run_id = ? AND planned = ?"
                            " ORDER BY id DESC LIMIT 1",
                            run_id, planned));
  if (!row) {
    return NotFound(StrCat("run ", run_id, " has no traced step ",
                           planned ? "under a plan" : "without a plan"));
  }
  StepRow step{
      .id = row->Int(0), .session_id = std::string(row->Text(1)), .report = {}};
  step.report.ParseFromString(std::string(row->Bytes(2)));
  return step;
}

Status VisitChunksBackwards(
    Database& db, std::string_view session_id, int64_t until_ns,
    const std::function<StatusOr<bool>(int64_t t1_ns, std::string_view body)>&
        visit) {
  ASSIGN_OR_RETURN(Statement select,
                   db.Prepare("SELECT t1_ns, body FROM chunks"
                              " WHERE session_id = ? AND t0_ns <= ?"
                              " ORDER BY producer_epoch DESC, seq DESC",
                              Fetch::kFew));
  RETURN_IF_ERROR(select.BindAll(session_id, until_ns));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return OkStatus();
    ASSIGN_OR_RETURN(const bool more, visit(select.Int(0), select.Bytes(1)));
    if (!more) return OkStatus();
  }
}

Status VisitChunksForwards(
    Database& db, std::string_view session_id, ChunkPlace from,
    int64_t until_ns,
    const std::function<Status(int64_t t1_ns, std::string_view body)>& visit) {
  ASSIGN_OR_RETURN(Statement select,
                   db.Prepare("SELECT t1_ns, body FROM chunks"
                              " WHERE session_id = ? AND t0_ns <= ?"
                              " AND (producer_epoch, seq) >= (?, ?)"
                              " ORDER BY producer_epoch, seq",
                              Fetch::kFew));
  RETURN_IF_ERROR(select.BindAll(session_id, until_ns, from.epoch, from.seq));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return OkStatus();
    RETURN_IF_ERROR(visit(select.Int(0), select.Bytes(1)));
  }
}

StatusOr<std::vector<ListedChunk>> ListChunksBackwards(
    Database& db, std::string_view session_id, int64_t until_ns, int64_t most) {
  ASSIGN_OR_RETURN(
      Statement select,
      db.Select("SELECT producer_epoch, seq, t1_ns, count FROM chunks"
                " WHERE session_id = ? AND t0_ns <= ?"
                " ORDER BY producer_epoch DESC, seq DESC LIMIT ?",
                session_id, until_ns, most));
  return select.All([](const Statement& row) {
    return ListedChunk{.place = {.epoch = row.Int(0), .seq = row.Int(1)},
                       .t1_ns = row.Int(2),
                       .count = row.Int(3)};
  });
}

StatusOr<std::string> LoadChunkBody(Database& db, std::string_view session_id,
                                    ChunkPlace place) {
  ASSIGN_OR_RETURN(const auto row,
                   db.First("SELECT body FROM chunks WHERE session_id = ?"
                            " AND producer_epoch = ? AND seq = ?",
                            session_id, place.epoch, place.seq));
  if (!row) return NotFound("a chunk was removed while it was read");
  return std::string(row->Bytes(0));
}

StatusOr<std::vector<std::string>> LoadNames(Database& db,
                                             std::string_view session_id) {
  ASSIGN_OR_RETURN(Statement select,
                   db.Select("SELECT id, text FROM names"
                             " WHERE session_id = ? ORDER BY id",
                             session_id));
  std::vector<std::string> texts(1);
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return texts;
    // Ids count up; one from far away is no reason for a large table.
    const int64_t id = select.Int(0);
    if (id <= 0 || id > kMostNameId) continue;
    texts.resize(static_cast<size_t>(id) + 1);
    texts.back() = select.Text(1);
  }
}

Status InsertMoments(Database& db, const Producer& producer,
                     const v1::Columns& columns) {
  if (columns.moments_size() == 0) return OkStatus();
  ASSIGN_OR_RETURN(Statement insert,
                   db.Prepare("INSERT INTO moments (run_id, session_id, report)"
                              " VALUES (?, ?, ?)"));
  for (const v1::Moment& moment : columns.moments()) {
    const std::string bytes = moment.SerializeAsString();
    RETURN_IF_ERROR(
        insert.Run(producer.run_id, producer.session_id, Blob{bytes}));
  }
  return OkStatus();
}

StatusOr<std::vector<MomentRow>> LoadMoments(Database& db,
                                             std::string_view run_id,
                                             int64_t limit) {
  ASSIGN_OR_RETURN(
      Statement select,
      db.Select("SELECT m.session_id, s.rank, s.realtime_ns - s.monotonic_ns,"
                " m.report FROM moments m"
                " JOIN sessions s ON s.session_id = m.session_id"
                " WHERE m.run_id = ? ORDER BY m.id DESC LIMIT ?",
                run_id, limit));
  return select.All([](const Statement& row) {
    MomentRow moment;
    moment.session_id = row.Text(0);
    moment.rank = static_cast<uint32_t>(row.Int(1));
    moment.monotonic_to_unix_ns = row.Int(2);
    moment.moment.ParseFromString(std::string(row.Bytes(3)));
    return moment;
  });
}

}  // namespace reprise::server
