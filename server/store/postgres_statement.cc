// SPDX-License-Identifier: Apache-2.0
//
// Statements on a connection to PostgreSQL, and the database that makes them.
#include <endian.h>

#include <cstring>
#include <optional>
#include <vector>

#include "base/str_cat.h"
#include "server/store/postgres.h"

namespace reprise::server {

namespace {

using Result = PostgresConnection::Result;

// Types of the server's catalogue, which never change.
constexpr Oid kBool = 16;
constexpr Oid kBytes = 17;
constexpr Oid kInt8 = 20;
constexpr Oid kInt2 = 21;
constexpr Oid kInt4 = 23;
constexpr Oid kText = 25;

constexpr int kRowsAtOnce = 8;  // of Fetch::kFew

template <typename Number>
Number FromBigEndian(const char* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof(number));
  if constexpr (sizeof(Number) == 8)
    return static_cast<Number>(be64toh(static_cast<uint64_t>(number)));
  if constexpr (sizeof(Number) == 4)
    return static_cast<Number>(be32toh(static_cast<uint32_t>(number)));
  if constexpr (sizeof(Number) == 2)
    return static_cast<Number>(be16toh(static_cast<uint16_t>(number)));
}

class PostgresStatement final : public StatementDriver {
 public:
  PostgresStatement(PostgresConnection& connection, std::string sql,
                    Fetch fetch)
      : connection_(connection), sql_(std::move(sql)), fetch_(fetch) {}
  ~PostgresStatement() override { Reset(); }

  Status Bind(int index, int64_t value) override {
    Parameter& to = At(index, kInt8);
    to.own.resize(sizeof(value));
    const uint64_t wire = htobe64(static_cast<uint64_t>(value));
    std::memcpy(to.own.data(), &wire, sizeof(wire));
    to.bytes = std::nullopt;
    return OkStatus();
  }

  Status Bind(int index, std::string_view text, bool copied) override {
    Parameter& to = At(index, kText);
    std::string valid;
    const bool changed = Repaired(text, valid);
    Set(to, changed ? std::string_view(valid) : text, copied || changed);
    return OkStatus();
  }

  Status Bind(int index, Blob blob, bool copied) override {
    Set(At(index, kBytes), blob.bytes, copied);
    return OkStatus();
  }

  StatusOr<bool> Step() override {
    if (!result_) {
      RETURN_IF_ERROR(Start());
    }
    if (++row_ < rows_) return true;
    if (!cursor_.empty() && rows_ == kRowsAtOnce) {
      RETURN_IF_ERROR(FetchMore());
      if (++row_ < rows_) return true;
    }
    End();
    return false;
  }

  void Reset() override {
    End();
    parameters_.clear();
  }

  int64_t Int(int column) const override {
    if (pq().PQgetisnull(result_->get(), row_, column) != 0) return 0;
    const char* bytes = pq().PQgetvalue(result_->get(), row_, column);
    switch (pq().PQftype(result_->get(), column)) {
      case kBool:
        return bytes[0];
      case kInt2:
        return FromBigEndian<int16_t>(bytes);
      case kInt4:
        return FromBigEndian<int32_t>(bytes);
      case kInt8:
        return FromBigEndian<int64_t>(bytes);
      default:
        return 0;
    }
  }

  std::string_view Bytes(int column) const override {
    return {
        pq().PQgetvalue(result_->get(), row_, column),
        static_cast<size_t>(pq().PQgetlength(result_->get(), row_, column))};
  }

 private:
  struct Parameter {
    Oid type = 0;
    std::string own;
    std::optional<std::string_view> bytes;  // else `own`
  };

  const Libpq& pq() const { return connection_.pq(); }

  Parameter& At(int index, Oid type) {
    const auto count = static_cast<size_t>(index);
    if (parameters_.size() < count) parameters_.resize(count);
    Parameter& parameter = parameters_[count - 1];
    parameter.type = type;
    return parameter;
  }

  static void Set(Parameter& to, std::string_view bytes, bool copied) {
    if (copied) {
      to.own = bytes;
      to.bytes = std::nullopt;
    } else {
      to.bytes = bytes;
    }
  }

  // Writes what PostgreSQL can hold of `text`; returns false if that is all.
  static bool Repaired(std::string_view text, std::string& valid) {
    valid = ValidUtf8(text, text.size() * 3);
    const bool same = valid == text;
    bool nul = false;
    for (size_t at = 0; (at = valid.find('\0', at)) != std::string::npos;) {
      valid.replace(at, 1, "\xEF\xBF\xBD");
      nul = true;
    }
    return nul || !same;
  }

  PostgresConnection::Values Values() const {
    PostgresConnection::Values values;
    for (const Parameter& parameter : parameters_) {
      const std::string_view bytes =
          parameter.bytes ? *parameter.bytes : std::string_view(parameter.own);
      values.types.push_back(parameter.type);
      values.data.push_back(bytes.data() != nullptr ? bytes.data() : "");
      values.sizes.push_back(static_cast<int>(bytes.size()));
      values.binary.push_back(1);
    }
    return values;
  }

  Status Start() {
    if (fetch_ == Fetch::kFew) {
      std::string cursor = connection_.NewCursor();
      RETURN_IF_ERROR(connection_
                          .RunOnce(StrCat("DECLARE ", cursor,
                                          " NO SCROLL CURSOR FOR ", sql_),
                                   Values())
                          .status());
      cursor_ = std::move(cursor);
      return FetchMore();
    }
    ASSIGN_OR_RETURN(Result result, connection_.Run(sql_, Values()));
    Take(std::move(result));
    return OkStatus();
  }

  Status FetchMore() {
    result_.reset();  // before the next rows are in memory
    ASSIGN_OR_RETURN(Result result,
                     connection_.RunOnce(
                         StrCat("FETCH ", kRowsAtOnce, " FROM ", cursor_), {}));
    Take(std::move(result));
    return OkStatus();
  }

  void Take(Result result) {
    rows_ = pq().PQntuples(result.get());
    row_ = -1;
    result_.emplace(std::move(result));
  }

  void End() {
    result_.reset();
    if (!cursor_.empty() && !connection_.lost()) {
      (void)connection_.Execute(StrCat("CLOSE ", cursor_));
    }
    cursor_.clear();
    rows_ = 0;
    row_ = -1;
  }

  PostgresConnection& connection_;
  const std::string sql_;
  const Fetch fetch_;
  std::vector<Parameter> parameters_;
  std::optional<Result> result_;
  std::string cursor_;
  int rows_ = 0;
  int row_ = -1;
};

class Driver final : public DatabaseDriver {
 public:
  explicit Driver(PostgresConnection& connection) : connection_(connection) {}

  StatusOr<std::unique_ptr<StatementDriver>> Prepare(std::string_view sql,
                                                     Fetch fetch) override {
    return std::unique_ptr<StatementDriver>(
        new PostgresStatement(connection_, PostgresQuery(sql), fetch));
  }
  Status Execute(const std::string& sql) override {
    return connection_.Execute(sql).status();
  }
  Status Begin() override { return Execute("BEGIN"); }
  int64_t changes() const override { return connection_.changes; }

  StatusOr<int64_t> UserVersion() override {
    PostgresStatement select(connection_, "SELECT version FROM reprise_schema",
                             Fetch::kAll);
    ASSIGN_OR_RETURN(const bool row, select.Step());
    return row ? select.Int(0) : 0;
  }
  Status SetUserVersion(int64_t version) override {
    return Execute(
        StrCat("DELETE FROM reprise_schema; "
               "INSERT INTO reprise_schema VALUES (",
               version, ")"));
  }

 private:
  PostgresConnection& connection_;
};

}  // namespace

Database PostgresDatabase(PostgresConnection& connection) {
  return Database(std::make_unique<Driver>(connection));
}

}  // namespace reprise::server
