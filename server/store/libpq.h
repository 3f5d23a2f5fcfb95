// SPDX-License-Identifier: Apache-2.0
//
// PostgreSQL's client library, loaded when a store asks for it. reprised thus
// starts, and a wheel is complete, on machines that do not have it.
//
//   ASSIGN_OR_RETURN(const Libpq* pq, LoadLibpq());
//   pq->PQfinish(connection);
//
// Types and constants are those of libpq-fe.h; the functions are only reached
// through the table.
#pragma once

#include <libpq-fe.h>

#include "base/status.h"

namespace reprise::server {

#define REPRISE_LIBPQ(X)  \
  X(PQconnectdbParams)    \
  X(PQfinish)             \
  X(PQstatus)             \
  X(PQerrorMessage)       \
  X(PQsetNoticeProcessor) \
  X(PQhost)               \
  X(PQport)               \
  X(PQdb)                 \
  X(PQsocket)             \
  X(PQbackendPID)         \
  X(PQexec)               \
  X(PQexecParams)         \
  X(PQprepare)            \
  X(PQexecPrepared)       \
  X(PQresultStatus)       \
  X(PQresultErrorField)   \
  X(PQclear)              \
  X(PQntuples)            \
  X(PQftype)              \
  X(PQgetvalue)           \
  X(PQgetlength)          \
  X(PQgetisnull)          \
  X(PQcmdTuples)          \
  X(PQcmdStatus)          \
  X(PQconsumeInput)       \
  X(PQnotifies)           \
  X(PQfreemem)            \
  X(PQconninfoParse)      \
  X(PQconninfoFree)

struct Libpq {
#define REPRISE_LIBPQ_MEMBER(name) decltype(&::name) name = nullptr;
  REPRISE_LIBPQ(REPRISE_LIBPQ_MEMBER)
#undef REPRISE_LIBPQ_MEMBER
};

// Loads libpq.so.5 once for the process. FAILED_PRECONDITION: it is not
// installed, or lacks a function.
StatusOr<const Libpq*> LoadLibpq();

}  // namespace reprise::server
