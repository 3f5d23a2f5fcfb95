// SPDX-License-Identifier: Apache-2.0
#include "server/store/postgres_store.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/str_cat.h"
#include "server/store/postgres.h"
#include "server/store/postgres_listener.h"

namespace reprise::server {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Connection = std::unique_ptr<PostgresConnection>;

constexpr size_t kMaxIdleConnections = 4;
constexpr milliseconds kAskPause{100};
// `degraded` is kept so long after a failure, unless something succeeds. A
// balancer sends no writes meanwhile, which alone find out whether there is room
// again; while nothing answers, the listener's attempts keep it.
constexpr milliseconds kDegradedFor{15'000};
// How long a COMMIT without an answer is asked after.
constexpr milliseconds kSettlePatience{5000};

// One body at a time over all daemons. The transaction's id tells later whether
// it was committed.
constexpr char kBeginWrite[] =
    "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s'; "
    "SELECT pg_advisory_xact_lock(1919250546, 2), pg_current_xact_id()::text";
constexpr char kBeginRead[] = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

class PostgresStore final : public Store {
 public:
  PostgresStore(std::string url, Connection writer)
      : url_(std::move(url)),
        place_(writer->place()),
        leases_(url_),
        writer_pid_(writer->backend_pid()),
        writer_(std::move(writer)) {}

  Status Write(const std::function<Status(Database&)>& body) override {
    const std::lock_guard lock(writer_mutex_);
    const StatusOr<std::string> transaction = BeginWrite();
    if (!transaction.ok()) return Note(transaction.status());
    Database db = PostgresDatabase(*writer_);
    const Status status = body(db);
    if (status.ok()) return Note(Commit(*transaction));
    (void)writer_->Execute("ROLLBACK");
    // The body's own errors say nothing about the store.
    if (writer_->lost()) (void)Note(status);
    return status;
  }

  Status Read(const std::function<Status(Database&)>& body) override {
    StatusOr<Connection> taken = TakeReader();
    if (!taken.ok()) return Note(taken.status());
    Connection reader = *std::move(taken);
    Database db = PostgresDatabase(*reader);
    const Status status = body(db);
    if (!reader->Execute("ROLLBACK").ok()) {
      return reader->lost() && !status.ok() ? Note(status) : status;
    }
    const std::lock_guard lock(readers_mutex_);
    if (idle_readers_.size() < kMaxIdleConnections) {
      idle_readers_.push_back(std::move(reader));
    }
    return status;
  }

  std::string degraded() const override {
    const std::lock_guard lock(degraded_mutex_);
    return Clock::now() < degraded_until_ ? degraded_ : "";
  }
  bool shared() const override { return true; }
  void Watch(std::function<void(const std::string&)> changed) override {
    listener_ = std::make_unique<PostgresListener>(
        url_, PostgresListener::Events{
                  .changed =
                      [this, changed = std::move(changed)](
                          const std::string& run_id, int by) {
                        // Our own changes are known already.
                        if (by != writer_pid_) changed(run_id);
                      },
                  .released =
                      [this] {
                        {
                          const std::lock_guard lock(released_mutex_);
                          ++released_;
                        }
                        released_changed_.notify_all();
                      },
                  .connected = [this](const Status& s) { (void)Note(s); }});
  }

  StatusOr<std::unique_ptr<Lease>> TryLease(const std::string& name) override {
    return leases_.Try(name);
  }
  void AwaitLeases(milliseconds within) override {
    std::unique_lock lock(released_mutex_);
    released_changed_.wait_for(
        lock, within, [this, seen = released_] { return released_ != seen; });
  }

  std::string place() const override { return place_; }
  int64_t SizeBytes() override {
    const auto bytes =
        Get(LoadNumber<>, "SELECT pg_database_size(current_database())");
    return bytes.ok() ? *bytes : 0;
  }

  // Rows that are removed stay on disk until the server reuses their room, so
  // this counts what came instead.
  StatusOr<int64_t> UsedBytes() override {
    return Get(
        LoadNumber<>,
        "SELECT CAST(coalesce(sum(stored_bytes), 0) AS BIGINT) FROM runs");
  }

  // The server's autovacuum and checkpoints do this.
  Status GiveBack() override { return OkStatus(); }
  Status Checkpoint() override { return OkStatus(); }

 private:
  // Returns the transaction's id.
  StatusOr<std::string> BeginWrite() {
    // An idle connection may have broken unnoticed: then a new one is tried.
    for (bool fresh = false;; fresh = true) {
      if (!writer_ || writer_->lost() || fresh) {
        writer_.reset();
        ASSIGN_OR_RETURN(writer_, PostgresConnection::Open(url_));
        writer_pid_ = writer_->backend_pid();
        fresh = true;
      }
      const auto begun = writer_->Execute(kBeginWrite);
      if (begun.ok()) {
        return std::string(writer_->pq().PQgetvalue(begun->get(), 0, 1));
      }
      const Status status = begun.status();
      if (fresh || !writer_->lost()) {
        (void)writer_->Execute("ROLLBACK");
        return status;
      }
    }
  }

  Status Commit(const std::string& transaction) {
    const auto committed = writer_->Execute("COMMIT");
    if (!committed.ok()) {
      return writer_->lost() ? Settle(transaction, committed.status())
                             : committed.status();
    }
    // After an error that nobody passed on, COMMIT means ROLLBACK.
    if (std::string_view(writer_->pq().PQcmdStatus(committed->get())) ==
        "COMMIT") {
      return OkStatus();
    }
    return Internal(StrCat(place_, ": the transaction had failed before"));
  }

  // The connection broke during COMMIT: asks whether it took place.
  Status Settle(const std::string& transaction, const Status& broken) {
    const auto deadline = Clock::now() + kSettlePatience;
    while (Clock::now() < deadline) {
      auto again = PostgresConnection::Open(url_);
      if (again.ok()) {
        const auto answer = (*again)->Execute(
            StrCat("SELECT pg_xact_status('", transaction, "'::xid8)"));
        if (answer.ok()) {
          const std::string_view found =
              (*again)->pq().PQgetvalue(answer->get(), 0, 0);
          if (found == "committed") return OkStatus();
          if (found != "in progress") {
            return Unavailable(
                StrCat(broken.message(), "; nothing was stored"));
          }
        }
      }
      std::this_thread::sleep_for(kAskPause);
    }
    return Unavailable(StrCat(broken.message(),
                              "; whether it was stored is not known: send it "
                              "again, it is stored once"));
  }

  StatusOr<Connection> TakeReader() {
    Connection reader;
    {
      const std::lock_guard lock(readers_mutex_);
      if (!idle_readers_.empty()) {
        reader = std::move(idle_readers_.back());
        idle_readers_.pop_back();
      }
    }
    if (reader && !reader->lost() && reader->Execute(kBeginRead).ok()) {
      return reader;
    }
    ASSIGN_OR_RETURN(reader, PostgresConnection::Open(url_));
    RETURN_IF_ERROR(reader->Execute(kBeginRead).status());
    return reader;
  }

  // Keeps what a call said about the store.
  Status Note(Status status) {
    const std::lock_guard lock(degraded_mutex_);
    switch (status.code()) {
      case Code::kUnavailable:
      case Code::kResourceExhausted:
      case Code::kPermissionDenied:
      case Code::kDataLoss:
        degraded_ = status.message();
        degraded_until_ = Clock::now() + kDegradedFor;
        break;
      default:
        degraded_.clear();
    }
    return status;
  }

  const std::string url_;
  const std::string place_;
  PostgresLeases leases_;
  std::atomic<int> writer_pid_;

  std::mutex writer_mutex_;
  Connection writer_;

  std::mutex readers_mutex_;
  std::vector<Connection> idle_readers_;

  mutable std::mutex degraded_mutex_;
  std::string degraded_;
  Clock::time_point degraded_until_;

  std::mutex released_mutex_;
  std::condition_variable released_changed_;
  uint64_t released_ = 0;

  std::unique_ptr<PostgresListener> listener_;  // last: it calls us
};

}  // namespace

StatusOr<std::unique_ptr<Store>> OpenPostgresStore(
    const StoreOptions& options) {
  RETURN_IF_ERROR(CheckPostgresUrl(options.url));
  ASSIGN_OR_RETURN(Connection writer, PostgresConnection::Open(options.url));
  RETURN_IF_ERROR(MigratePostgres(*writer));
  return std::unique_ptr<Store>(
      new PostgresStore(options.url, std::move(writer)));
}

namespace {

// Returns what libpq says of a text without the parts that it quotes, which may
// hold a password. Single characters stay.
std::string WithoutQuoted(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t open = text.find('"');
    out += text.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = text.find('"', open + 1);
    const bool is_short = close == open + 2;
    out += is_short ? text.substr(open, 3) : std::string_view("\"...\"");
    text.remove_prefix(close == std::string_view::npos ? text.size()
                                                       : close + 1);
  }
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace

Status CheckPostgresUrl(const std::string& url) {
  ASSIGN_OR_RETURN(const Libpq* pq, LoadLibpq());
  char* message = nullptr;
  PQconninfoOption* const options = pq->PQconninfoParse(url.c_str(), &message);
  if (options == nullptr) {
    const std::string why = message != nullptr ? message : "no memory";
    if (message != nullptr) pq->PQfreemem(message);
    return InvalidArgument(StrCat("--store: ", WithoutQuoted(why)));
  }
  bool has_password = false;
  for (const PQconninfoOption* o = options; o->keyword != nullptr; ++o) {
    const std::string_view name = o->keyword;
    has_password |= (name == "password" || name == "sslpassword") &&
                    o->val != nullptr && *o->val != '\0';
  }
  pq->PQconninfoFree(options);
  if (!has_password) return OkStatus();
  return InvalidArgument(
      "--store: every user of this machine can read a password on a command "
      "line; put it into a file of mode 0600 and name the file in PGPASSFILE");
}

}  // namespace reprise::server
