// SPDX-License-Identifier: Apache-2.0
//
// The collector's SQLite file of chunks (spool.sql has the schema).
//
// One writer (Spool, on the drain loop's thread) and one reader (SpoolReader,
// on the forwarder's thread), each with its own connection. The position in a
// ring is stored in the same transaction as the records, so that a crash at any
// moment can be resumed exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/collect/chunk_builder.h"
#include "server/collect/chunk_source.h"
#include "server/store/database.h"

namespace reprise::server {

enum class SessionEnd { kRunning = 0, kSaidSo = 1, kKilled = 2 };

// A row of `sessions`; spool.sql explains the columns.
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

class Spool {
 public:
  // Creates or migrates the file. FAILED_PRECONDITION: a newer version wrote it;
  // otherwise as Database::Open.
  static StatusOr<Spool> Open(const std::string& path);

  StatusOr<std::vector<SpooledSession>> LoadSessions();
  StatusOr<std::vector<SpooledName>> LoadNames(int64_t key);

  // Returns the bytes of the chunk bodies of a session.
  StatusOr<int64_t> LoadBytes(int64_t key);

  // Runs `body` in a transaction, which is rolled back if it fails. The
  // functions below must be called inside one.
  template <typename Body>
  Status Transaction(Body&& body) {
    return database_.Transaction(std::forward<Body>(body));
  }
  Status SaveSession(const SpooledSession& session);  // inserts or replaces
  Status AddName(int64_t key, const SpooledName& name);
  Status AddChunk(int64_t key, uint64_t seq, const v1::Chunk& chunk);
  // Deletes the chunks up to `seq`; returns their bytes.
  StatusOr<int64_t> DeleteUpTo(int64_t key, uint64_t seq);
  // Deletes the `count` oldest chunks; returns how many, and their bytes.
  StatusOr<std::pair<int64_t, int64_t>> DeleteOldest(int64_t key,
                                                     int64_t count);
  Status DeleteSession(int64_t key);

  // Moves the WAL into the file and returns free space of both to the system.
  Status Checkpoint();

 private:
  explicit Spool(Database database) : database_(std::move(database)) {}

  Database database_;
  std::optional<Statement> save_session_;
  std::optional<Statement> add_name_;
  std::optional<Statement> add_chunk_;
};

// Uses only short read transactions: an open one would prevent checkpoints of
// the WAL.
class SpoolReader final : public ChunkSource {
 public:
  static StatusOr<std::unique_ptr<SpoolReader>> Open(const std::string& path);

  StatusOr<std::optional<v1::Chunk>> NextChunk(int64_t key,
                                               uint64_t seq) override;
  StatusOr<std::vector<SpooledName>> NamesAfter(int64_t key,
                                                uint64_t after) override;
  std::string missing() const override {
    return "trimmed: the spool reached its cap";
  }
  std::string waiting() const override { return "records wait in the spool"; }

 private:
  explicit SpoolReader(Database database) : database_(std::move(database)) {}

  Database database_;
  std::optional<Statement> next_chunk_;
  std::optional<Statement> names_after_;
};

}  // namespace reprise::server
