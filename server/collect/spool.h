// SPDX-License-Identifier: Apache-2.0
//
// The collector's SQLite file of chunks (spool.sql has the schema).
//
// One writer (Spool, the drain loop's thread) and one reader (SpoolReader, the
// forwarder's thread), each with a connection of its own. How far a ring has
// been read is stored in the transaction that stores the records, so that a
// crash at any moment can be resumed exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/collect/chunk_builder.h"
#include "server/store/sqlite.h"

namespace reprise::server {

enum class SessionEnd { kRunning = 0, kSaidSo = 1, kKilled = 2 };

// A row of `sessions`; the columns are explained in spool.sql.
struct SpooledSession {
  int64_t key = 0;
  std::string session_id;
  std::string run_id;
  uint64_t epoch = 1;
  std::string info;
  int64_t peer_pid = 0;
  uint64_t peer_ticks = 0;
  uint64_t ring_position = 0;
  uint64_t next_seq = 1;
  std::vector<reprise_slot> pending;
  uint64_t records = 0;
  uint64_t pushed = 0;
  uint64_t dropped = 0;
  uint64_t torn = 0;
  SessionEnd end = SessionEnd::kRunning;
  int64_t realtime_to_monotonic_ns = 0;
};

struct SpooledName {
  uint64_t ordinal = 0;
  uint32_t name = 0;
  std::string text;
};

struct SpooledChunk {
  uint64_t seq = 0;
  NewChunk chunk;
};

class Spool {
 public:
  // Creates or migrates the file. `durable_power_loss`: fsync every commit.
  // FAILED_PRECONDITION: written by a newer version; else as Database::Open.
  static StatusOr<Spool> Open(const std::string& path, bool durable_power_loss);

  StatusOr<std::vector<SpooledSession>> LoadSessions();
  StatusOr<std::vector<SpooledName>> LoadNames(int64_t key);

  // Bytes of the chunk bodies of one session, and of all.
  StatusOr<int64_t> LoadBytes(int64_t key);

  // All writes below belong inside. Rolled back when `body` fails.
  template <typename Body>
  Status Transaction(Body&& body) {
    return database_.Transaction(std::forward<Body>(body));
  }
  Status SaveSession(const SpooledSession& session);  // inserts or replaces
  Status AddName(int64_t key, const SpooledName& name);
  Status AddChunk(int64_t key, uint64_t seq, const NewChunk& chunk);
  // Deletes the chunks up to `seq`; returns their bytes.
  StatusOr<int64_t> DeleteUpTo(int64_t key, uint64_t seq);
  // Deletes the `count` oldest chunks; returns how many, and their bytes.
  StatusOr<std::pair<int64_t, int64_t>> DeleteOldest(int64_t key,
                                                     int64_t count);
  Status DeleteSession(int64_t key);

  // Moves the WAL into the file and gives free room of both back.
  Status Checkpoint();

 private:
  explicit Spool(Database database) : database_(std::move(database)) {}

  Database database_;
  std::optional<Statement> save_session_;
  std::optional<Statement> add_name_;
  std::optional<Statement> add_chunk_;
};

// Short read transactions only: an open one would keep the WAL from being
// moved into the file.
class SpoolReader {
 public:
  static StatusOr<SpoolReader> Open(const std::string& path);

  // The chunk with the lowest seq >= `seq`, if any.
  StatusOr<std::optional<SpooledChunk>> NextChunk(int64_t key, uint64_t seq);

  // Names with an ordinal above `after`, oldest first, about 256 KiB at most.
  StatusOr<std::vector<SpooledName>> NamesAfter(int64_t key, uint64_t after);

 private:
  explicit SpoolReader(Database database) : database_(std::move(database)) {}

  Database database_;
  std::optional<Statement> next_chunk_;
  std::optional<Statement> names_after_;
};

}  // namespace reprise::server
