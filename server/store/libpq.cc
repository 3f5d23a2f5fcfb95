// SPDX-License-Identifier: Apache-2.0
#include "server/store/libpq.h"

#include <dlfcn.h>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

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

StatusOr<const Libpq*> LoadLibpq() {
  static const StatusOr<Libpq> loaded = Load();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace reprise::server
