// SPDX-License-Identifier: Apache-2.0
#include "server/collect/spool.h"

#include <cstring>

#include "base/str_cat.h"
#include "server/collect/spool_sql.h"  // generated: kSpoolSql
#include "server/store/damage.h"
#include "server/store/migrate.h"

namespace reprise::server {

namespace {

constexpr size_t kNamesBytes = 256 << 10;
constexpr Migration kSpoolSchema[] = {{1, "spool", kSpoolSql}};

std::string_view SlotBytes(const std::vector<reprise_slot>& slots) {
  return {reinterpret_cast<const char*>(slots.data()),
          slots.size() * sizeof(reprise_slot)};
}

std::vector<reprise_slot> SlotsOf(std::string_view bytes) {
  std::vector<reprise_slot> slots(bytes.size() / sizeof(reprise_slot));
  if (!slots.empty()) {
    std::memcpy(slots.data(), bytes.data(),
                slots.size() * sizeof(reprise_slot));
  }
  return slots;
}

// A chunk has about 100 KiB; with pages of 4 KiB, half of the collector's time
// was spent in the system calls that read and write them. Most chunks are
// acknowledged and deleted before a checkpoint would move them.
constexpr int kPageBytes = 32 << 10;
constexpr int kCheckpointBytes = 32 << 20;

uint64_t Unsigned(int64_t value) { return static_cast<uint64_t>(value); }

}  // namespace

StatusOr<Spool> Spool::Open(const std::string& path) {
  if (path.empty()) return InvalidArgument("spool: the path is empty");
  ASSIGN_OR_RETURN(Database database, Database::Open(path, kPageBytes));
  RETURN_IF_ERROR(CheckWhole(database, path));
  RETURN_IF_ERROR(Migrate(database, kSpoolSchema));
  RETURN_IF_ERROR(database.Execute(
      StrCat("PRAGMA wal_autocheckpoint = ", kCheckpointBytes / kPageBytes)));
  // Debian's SQLite overwrites deleted data by default: every acknowledged
  // chunk was read again and overwritten with zeros.
  RETURN_IF_ERROR(database.Execute("PRAGMA secure_delete = OFF"));
  Spool spool(std::move(database));
  ASSIGN_OR_RETURN(
      spool.save_session_,
      spool.database_.Prepare(
          "INSERT OR REPLACE INTO sessions VALUES "
          "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16)"));
  ASSIGN_OR_RETURN(spool.add_name_,
                   spool.database_.Prepare(
                       "INSERT OR IGNORE INTO defs VALUES (?1,?2,?3,?4)"));
  ASSIGN_OR_RETURN(spool.add_chunk_,
                   spool.database_.Prepare(
                       "INSERT INTO chunks VALUES (?1,?2,?3,?4,?5,?6,?7,?8)"));
  return spool;
}

StatusOr<std::vector<SpooledSession>> Spool::LoadSessions() {
  ASSIGN_OR_RETURN(
      Statement all,
      database_.Prepare(
          "SELECT id, session_id, run_id, producer_epoch, info, peer_pid, "
          "peer_ticks, ring_position, next_seq, pending, records, pushed, "
          "dropped, torn, ended, realtime_to_monotonic_ns FROM sessions "
          "ORDER BY id"));
  return all.All([](const Statement& row) {
    return SpooledSession{.key = row.Int(0),
                          .session_id = std::string(row.Text(1)),
                          .run_id = std::string(row.Text(2)),
                          .epoch = Unsigned(row.Int(3)),
                          .info = std::string(row.Bytes(4)),
                          .peer_pid = row.Int(5),
                          .peer_ticks = Unsigned(row.Int(6)),
                          .ring_position = Unsigned(row.Int(7)),
                          .next_seq = Unsigned(row.Int(8)),
                          .pending = SlotsOf(row.Bytes(9)),
                          .records = Unsigned(row.Int(10)),
                          .pushed = Unsigned(row.Int(11)),
                          .dropped = Unsigned(row.Int(12)),
                          .torn = Unsigned(row.Int(13)),
                          .end = static_cast<SessionEnd>(row.Int(14)),
                          .realtime_to_monotonic_ns = row.Int(15)};
  });
}

StatusOr<std::vector<SpooledName>> Spool::LoadNames(int64_t key) {
  ASSIGN_OR_RETURN(Statement all,
                   database_.Select("SELECT ordinal, name, text FROM defs "
                                    "WHERE session = ? ORDER BY ordinal",
                                    key));
  return all.All([](const Statement& row) {
    return SpooledName{.ordinal = Unsigned(row.Int(0)),
                       .name = static_cast<uint32_t>(row.Int(1)),
                       .text = std::string(row.Text(2))};
  });
}

StatusOr<int64_t> Spool::LoadBytes(int64_t key) {
  return LoadNumber(database_,
                    "SELECT coalesce(sum(length(body)), 0) FROM chunks "
                    "WHERE session = ?",
                    key);
}

Status Spool::SaveSession(const SpooledSession& s) {
  return save_session_->Run(
      s.key, s.session_id, s.run_id, s.epoch, Blob{s.info}, s.peer_pid,
      s.peer_ticks, s.ring_position, s.next_seq, Blob{SlotBytes(s.pending)},
      s.records, s.pushed, s.dropped, s.torn, s.end,
      s.realtime_to_monotonic_ns);
}

Status Spool::AddName(int64_t key, const SpooledName& name) {
  return add_name_->Run(key, name.ordinal, name.name, name.text);
}

Status Spool::AddChunk(int64_t key, uint64_t seq, const v1::Chunk& chunk) {
  return add_chunk_->Run(key, seq, chunk.t0_ns(), chunk.t1_ns(), chunk.count(),
                         chunk.crc32c(), chunk.dropped_before(),
                         Blob{chunk.body()});
}

StatusOr<int64_t> Spool::DeleteUpTo(int64_t key, uint64_t seq) {
  ASSIGN_OR_RETURN(
      const int64_t bytes,
      LoadNumber(database_,
                 "SELECT coalesce(sum(length(body)), 0) FROM chunks "
                 "WHERE session = ? AND seq <= ?",
                 key, seq));
  RETURN_IF_ERROR(database_.Run(
      "DELETE FROM chunks WHERE session = ? AND seq <= ?", key, seq));
  return bytes;
}

StatusOr<std::pair<int64_t, int64_t>> Spool::DeleteOldest(int64_t key,
                                                          int64_t count) {
  ASSIGN_OR_RETURN(
      Statement last,
      database_.Select("SELECT coalesce(max(seq), 0), count(*) FROM (SELECT "
                       "seq FROM chunks WHERE session = ? ORDER BY seq "
                       "LIMIT ?)",
                       key, count));
  ASSIGN_OR_RETURN(const bool row, last.Step());
  const uint64_t seq = row ? Unsigned(last.Int(0)) : 0;
  const int64_t found = row ? last.Int(1) : 0;
  last.Reset();
  ASSIGN_OR_RETURN(const int64_t bytes, DeleteUpTo(key, seq));
  return std::pair(found, bytes);
}

Status Spool::DeleteSession(int64_t key) {
  for (const char* sql : {"DELETE FROM chunks WHERE session = ?",
                          "DELETE FROM defs WHERE session = ?",
                          "DELETE FROM sessions WHERE id = ?"}) {
    RETURN_IF_ERROR(database_.Run(sql, key));
  }
  return OkStatus();
}

Status Spool::Checkpoint() {
  RETURN_IF_ERROR(database_.Execute("PRAGMA wal_checkpoint(TRUNCATE)"));
  // This writes to the WAL, so on a full disk it is only possible after the
  // first checkpoint.
  RETURN_IF_ERROR(database_.Execute("PRAGMA incremental_vacuum"));
  return database_.Execute("PRAGMA wal_checkpoint(TRUNCATE)");
}

StatusOr<std::unique_ptr<SpoolReader>> SpoolReader::Open(
    const std::string& path) {
  ASSIGN_OR_RETURN(Database database, Database::Open(path));
  std::unique_ptr<SpoolReader> reader(new SpoolReader(std::move(database)));
  ASSIGN_OR_RETURN(
      reader->next_chunk_,
      reader->database_.Prepare(
          "SELECT seq, t0_ns, t1_ns, count, crc32c, dropped_before, body "
          "FROM chunks WHERE session = ? AND seq >= ? ORDER BY seq LIMIT 1"));
  ASSIGN_OR_RETURN(reader->names_after_,
                   reader->database_.Prepare(
                       "SELECT ordinal, name, text FROM defs WHERE session = "
                       "? AND ordinal > ? ORDER BY ordinal"));
  return reader;
}

StatusOr<std::optional<v1::Chunk>> SpoolReader::NextChunk(int64_t key,
                                                          uint64_t seq) {
  RETURN_IF_ERROR(next_chunk_->BindAll(key, seq));
  ASSIGN_OR_RETURN(const bool row, next_chunk_->Step());
  std::optional<v1::Chunk> found;
  if (!row) return found;
  found.emplace();
  found->set_seq(Unsigned(next_chunk_->Int(0)));
  found->set_t0_ns(Unsigned(next_chunk_->Int(1)));
  found->set_t1_ns(Unsigned(next_chunk_->Int(2)));
  found->set_count(static_cast<uint32_t>(next_chunk_->Int(3)));
  found->set_crc32c(static_cast<uint32_t>(next_chunk_->Int(4)));
  found->set_dropped_before(Unsigned(next_chunk_->Int(5)));
  found->set_body(std::string(next_chunk_->Bytes(6)));
  next_chunk_->Reset();
  return found;
}

StatusOr<std::vector<SpooledName>> SpoolReader::NamesAfter(int64_t key,
                                                           uint64_t after) {
  RETURN_IF_ERROR(names_after_->BindAll(key, after));
  std::vector<SpooledName> names;
  size_t bytes = 0;
  while (bytes < kNamesBytes) {
    ASSIGN_OR_RETURN(const bool row, names_after_->Step());
    if (!row) break;
    SpooledName& name = names.emplace_back();
    name.ordinal = Unsigned(names_after_->Int(0));
    name.name = static_cast<uint32_t>(names_after_->Int(1));
    name.text = names_after_->Text(2);
    bytes += name.text.size() + 16;
  }
  names_after_->Reset();
  return names;
}

}  // namespace reprise::server
