// SPDX-License-Identifier: Apache-2.0
//
// Status and StatusOr: how everything that can fail reports it.
//
// The codes are gRPC's, so that an error crosses RPC, HTTP and the command
// line unchanged. A message names the input, the fact and the remedy, in lower
// case and without a full stop: `storages[7].bytes: must not be negative, got
// -1`. No function throws, and none returns null to mean failure.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>

namespace reprise {

enum class Code {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  friend bool operator==(const Status&, const Status&) = default;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status Cancelled(std::string m) {
  return {Code::kCancelled, std::move(m)};
}
inline Status InvalidArgument(std::string m) {
  return {Code::kInvalidArgument, std::move(m)};
}
inline Status NotFound(std::string m) {
  return {Code::kNotFound, std::move(m)};
}
inline Status AlreadyExists(std::string m) {
  return {Code::kAlreadyExists, std::move(m)};
}
inline Status PermissionDenied(std::string m) {
  return {Code::kPermissionDenied, std::move(m)};
}
inline Status ResourceExhausted(std::string m) {
  return {Code::kResourceExhausted, std::move(m)};
}
inline Status FailedPrecondition(std::string m) {
  return {Code::kFailedPrecondition, std::move(m)};
}
inline Status Unimplemented(std::string m) {
  return {Code::kUnimplemented, std::move(m)};
}
inline Status Internal(std::string m) {
  return {Code::kInternal, std::move(m)};
}
inline Status Unavailable(std::string m) {
  return {Code::kUnavailable, std::move(m)};
}
inline Status DeadlineExceeded(std::string m) {
  return {Code::kDeadlineExceeded, std::move(m)};
}

// A value, or the error that explains why there is none.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(T value) : value_(std::move(value)) {}         // NOLINT: implicit
  StatusOr(Status status) : status_(std::move(status)) {  // NOLINT: implicit
    assert(!status_.ok() && "a StatusOr without a value needs an error");
  }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  const T& value() const& { return *value_; }
  T& value() & { return *value_; }
  T&& value() && { return *std::move(value_); }
  const T& operator*() const& { return *value_; }
  T& operator*() & { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  const T* operator->() const { return &*value_; }
  T* operator->() { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

// Returns from the calling function unless `expr` is OK.
#define RETURN_IF_ERROR(expr)                                 \
  if (::reprise::Status reprise_s = (expr); reprise_s.ok()) { \
  } else /* NOLINT */                                         \
    return reprise_s

#define REPRISE_CONCAT_INNER(a, b) a##b
#define REPRISE_CONCAT(a, b) REPRISE_CONCAT_INNER(a, b)

// Assigns the value of `expr` to `lhs`, or returns its error from the calling
// function.
#define ASSIGN_OR_RETURN(lhs, expr) \
  REPRISE_ASSIGN_OR_RETURN(REPRISE_CONCAT(reprise_or_, __LINE__), lhs, expr)
#define REPRISE_ASSIGN_OR_RETURN(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return tmp.status();            \
  lhs = *std::move(tmp)

}  // namespace reprise
