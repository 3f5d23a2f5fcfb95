// SPDX-License-Identifier: Apache-2.0
#include "server/store/postgres.h"

#include <dlfcn.h>

#include <array>
#include <charconv>

#include "base/str_cat.h"

namespace reprise::server {

using Result = PostgresConnection::Result;

namespace {

// libpq's messages may have several lines.
std::string OneLine(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c != '\n' && c != '\t') {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

// The code of a SQLSTATE (PostgreSQL's documentation, appendix A).
Code CodeOf(std::string_view state) {
  if (state == "42501" || state == "25006" || state.starts_with("28")) {
    return Code::kPermissionDenied;
  }
  if (state.starts_with("53")) return Code::kResourceExhausted;
  if (state.starts_with("23")) return Code::kAlreadyExists;
  if (state.starts_with("22")) return Code::kInvalidArgument;
  if (state == "XX001" || state == "XX002") return Code::kDataLoss;
  if (state.starts_with("08") || state.starts_with("40") ||
      state.starts_with("55") || state.starts_with("57") || state == "25P03") {
    return Code::kUnavailable;
  }
  return Code::kInternal;
}

StatusOr<Libpq> Load() {
  // Stays open: connections live until the process ends.
  void* const library = ::dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return FailedPrecondition(StrCat("PostgreSQL's client library is missing (",
                                     ::dlerror(),
                                     "); install it: the package is libpq5"));
  }
  Libpq pq;
#define REPRISE_LIBPQ_LOAD(name)                                          \
  pq.name = reinterpret_cast<decltype(pq.name)>(::dlsym(library, #name)); \
  if (pq.name == nullptr) {                                               \
    return FailedPrecondition("libpq.so.5 has no " #name                  \
                              "; install a newer libpq5");                \
  }
  REPRISE_LIBPQ(REPRISE_LIBPQ_LOAD)
#undef REPRISE_LIBPQ_LOAD
  return pq;
}

}  // namespace

StatusOr<std::unique_ptr<PostgresConnection>> PostgresConnection::Open(
    const std::string& url) {
  ASSIGN_OR_RETURN(const Libpq* pq, LoadLibpq());
  // What stands before `dbname` is a default that the URL may change. A peer
  // that is gone without a word is noticed in half a minute.
  constexpr std::array keys = {"connect_timeout",
                               "keepalives_idle",
                               "keepalives_interval",
                               "keepalives_count",
                               "tcp_user_timeout",
                               "target_session_attrs",
                               "fallback_application_name",
                               "client_encoding",
                               "dbname",
                               static_cast<const char*>(nullptr)};
  const std::array values = {"5",         "10",
                             "5",         "3",
                             "20000",     "read-write",
                             "reprised",  "UTF8",
                             url.c_str(), static_cast<const char*>(nullptr)};
  PGconn* const raw =
      pq->PQconnectdbParams(keys.data(), values.data(), /*expand_dbname=*/1);
  if (raw == nullptr) return ResourceExhausted("PostgreSQL: no memory");
  std::unique_ptr<PostgresConnection> connection(
      new PostgresConnection(*pq, raw));
  if (connection->lost()) {
    const std::string message = OneLine(pq->PQerrorMessage(raw));
    // Before a session there is no SQLSTATE.
    const bool denied = message.find("authentication") != std::string::npos ||
                        message.find("password") != std::string::npos ||
                        message.find("pg_hba.conf") != std::string::npos;
    return Status(denied ? Code::kPermissionDenied : Code::kUnavailable,
                  StrCat("PostgreSQL: ", message));
  }
  pq->PQsetNoticeProcessor(
      raw, [](void*, const char*) {}, nullptr);
  // The server gives up on us as soon: what we hold is free again.
  RETURN_IF_ERROR(connection
                      ->Execute("SET tcp_keepalives_idle = 10; "
                                "SET tcp_keepalives_interval = 5; "
                                "SET tcp_keepalives_count = 3; "
                                "SET lock_timeout = '40s'; "
                                "SET standard_conforming_strings = on")
                      .status());
  return connection;
}

PostgresConnection::PostgresConnection(const Libpq& pq, PGconn* connection)
    : pq_(pq), connection_(connection) {
  const auto text = [](const char* t) { return std::string(t ? t : ""); };
  const std::string host = text(pq.PQhost(connection));
  place_ = StrCat("postgresql://", host.starts_with('/') ? "" : host, ":",
                  text(pq.PQport(connection)), "/", text(pq.PQdb(connection)));
}

PostgresConnection::~PostgresConnection() { pq_.PQfinish(connection_); }

StatusOr<Result> PostgresConnection::Check(PGresult* raw) {
  Result result(raw, Clear{&pq_});
  const ExecStatusType status = pq_.PQresultStatus(raw);
  if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) {
    const std::string_view rows = pq_.PQcmdTuples(raw);
    changes = 0;
    std::from_chars(rows.data(), rows.data() + rows.size(), changes);
    return result;
  }
  // An error that the server did not send: it ended, or something in between
  // did. libpq may still call the connection good until it is used again.
  const char* const state = pq_.PQresultErrorField(raw, PG_DIAG_SQLSTATE);
  broken_ |= state == nullptr || *state == '\0';
  if (lost()) {
    return Unavailable(StrCat(place_, ": the connection was lost: ",
                              OneLine(pq_.PQerrorMessage(connection_))));
  }
  const auto field = [&](int code) {
    const char* text = pq_.PQresultErrorField(raw, code);
    return OneLine(text != nullptr ? text : "");
  };
  return Status(CodeOf(field(PG_DIAG_SQLSTATE)),
                StrCat(place_, ": ", field(PG_DIAG_MESSAGE_PRIMARY)));
}

StatusOr<Result> PostgresConnection::Execute(const std::string& sql) {
  return Check(pq_.PQexec(connection_, sql.c_str()));
}

StatusOr<Result> PostgresConnection::Run(const std::string& sql,
                                         const Values& values) {
  std::string key = sql;
  for (const Oid type : values.types) key += StrCat("\n", type);
  const auto count = static_cast<int>(values.types.size());
  auto found = prepared_.find(key);
  if (found == prepared_.end()) {
    const std::string name = StrCat("s", prepared_.size());
    RETURN_IF_ERROR(Check(pq_.PQprepare(connection_, name.c_str(), sql.c_str(),
                                        count, values.types.data()))
                        .status());
    found = prepared_.emplace(std::move(key), name).first;
  }
  return Check(pq_.PQexecPrepared(connection_, found->second.c_str(), count,
                                  values.data.data(), values.sizes.data(),
                                  values.binary.data(), /*resultFormat=*/1));
}

StatusOr<Result> PostgresConnection::RunOnce(const std::string& sql,
                                             const Values& values) {
  return Check(pq_.PQexecParams(
      connection_, sql.c_str(), static_cast<int>(values.types.size()),
      values.types.data(), values.data.data(), values.sizes.data(),
      values.binary.data(), /*resultFormat=*/1));
}

StatusOr<const Libpq*> LoadLibpq() {
  static const StatusOr<Libpq> loaded = Load();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace reprise::server
