// SPDX-License-Identifier: Apache-2.0
//
// What a central daemon has acknowledged, in a SQLite file of its own: the rest
// of the store is still to be sent. If the file is lost, everything is offered
// again, and the centre stores nothing twice.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"
#include "server/collect/chunk_source.h"
#include "server/store/database.h"
#include "server/store/store.h"

namespace reprise::server {

// Used by one thread.
class Outbox {
 public:
  // Opens or creates the file. What it says of another centre than `target` is
  // forgotten.
  static StatusOr<Outbox> Open(const std::string& path,
                               const std::string& target);

  // Sessions whose end was acknowledged, with how many chunks before it.
  StatusOr<std::map<std::string, uint64_t>> Ended();
  Status SetEnded(const std::string& session_id, uint64_t chunks);
  Status RemoveEnded(const std::string& session_id);

  // Plans that were acknowledged for a run.
  StatusOr<bool> HasPlan(const std::string& run_id, const std::string& plan_id);
  Status AddPlan(const std::string& run_id, const std::string& plan_id);

  // What was acknowledged of each run beside its sessions (RunFacts::Text).
  StatusOr<std::map<std::string, std::string>> Runs();
  Status SetRun(const std::string& run_id, const std::string& facts);

  // Forgets a run that is no longer in the store.
  Status RemoveRun(const std::string& run_id);

 private:
  explicit Outbox(Database database) : database_(std::move(database)) {}

  Database database_;
};

// Sessions of a store, as a forwarder sends them.

// What the row of a run says beside its sessions.
struct RunFacts {
  std::string graph_id;
  std::string plan_id;
  int64_t exit_code = -1;
  int64_t exit_signal = 0;

  std::string Text() const;
};

// A session that began on this machine, as a list has it.
struct ListedSession {
  std::string session_id;
  std::string run_id;
  bool running = false;
  uint64_t committed = 0;  // chunks, over all epochs
  RunFacts run;
};

// Lists the sessions of a store, those under way first, without those that
// other daemons forward to it, and without those of `reprise doctor`.
StatusOr<std::vector<ListedSession>> ListSessions(Database& db);

// One epoch of a session.
struct StoredSession {
  v1::Hello hello;
  uint64_t committed = 0;  // every seq up to this one is stored or lost
  uint64_t names = 0;
  v1::Caps caps;
  std::optional<v1::Bye> bye;  // if the session has ended
};

// Returns the epochs of a session, oldest first; none if it was removed.
StatusOr<std::vector<StoredSession>> LoadStoredSession(
    Database& db, std::string_view session_id);

// Reads chunks and names of sessions from a store.
class StoredChunks final : public ChunkSource {
 public:
  explicit StoredChunks(Store& store) : store_(store) {}

  // What a key means from now on. Thread-safe.
  void Set(int64_t key, const std::string& session_id, uint64_t epoch);
  void Forget(int64_t key);

  StatusOr<std::optional<v1::Chunk>> NextChunk(int64_t key,
                                               uint64_t seq) override;
  // An ordinal is how many names were given out since the last call after 0:
  // ids of names may come in any order.
  StatusOr<std::vector<SpooledName>> NamesAfter(int64_t key,
                                                uint64_t after) override;
  std::string missing() const override {
    return "not kept by the daemon of the job's machine";
  }
  std::string waiting() const override {
    return "what it has not acknowledged is kept here and sent later";
  }

 private:
  struct Place {
    std::string session_id;
    uint64_t epoch = 0;
    std::set<int64_t> names;  // given out
  };
  std::shared_ptr<Place> PlaceOf(int64_t key) const;

  Store& store_;
  mutable std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Place>> places_;
};

}  // namespace reprise::server
