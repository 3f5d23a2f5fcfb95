/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a daemon and the jobs of one machine meet. The agent, the daemon and
 * the command read the same list, best first:
 *
 *   REPRISE_SOCKET                            alone, if set
 *   /run/reprise/agent.sock                   the service of the machine
 *   $XDG_RUNTIME_DIR/reprise/agent.sock       if that is an absolute path
 *   ${TMPDIR:-/tmp}/reprise-<uid>/agent.sock
 *
 * A daemon that a user starts listens at the first of the list that is not the
 * service's. It passes over $XDG_RUNTIME_DIR where that is not a folder that
 * belongs to the user and can be written to, as after `sudo`. The Python
 * package has the same rules (reprise/daemon.py), held to these by
 * tests/fixtures/socket_paths.json.
 */
#ifndef REPRISE_SOCKETS_H_
#define REPRISE_SOCKETS_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REPRISE_SERVICE_SOCKET "/run/reprise/agent.sock"

enum {
  kRepriseSocketPlaces = 3,
  kRepriseSocketBytes = 108 /* sockaddr_un.sun_path */
};

typedef struct {
  char path[kRepriseSocketPlaces][kRepriseSocketBytes];
  int count;
  int own; /* the one at which a daemon of this user listens; -1: none is short
              enough */
} RepriseSockets;

/* 1: added. 0: the path is too long for a socket. */
static inline int RepriseAddSocket(RepriseSockets *sockets, const char *folder,
                                   const char *file) {
  const int length = snprintf(sockets->path[sockets->count],
                              kRepriseSocketBytes, "%s%s", folder, file);
  if (length <= 0 || length >= kRepriseSocketBytes) return 0;
  ++sockets->count;
  return 1;
}

static inline int RepriseIsOwnFolder(const char *folder) {
  struct stat facts;
  return stat(folder, &facts) == 0 && S_ISDIR(facts.st_mode) &&
         facts.st_uid == geteuid() && access(folder, W_OK | X_OK) == 0;
}

/* Fills the list. `named` goes before REPRISE_SOCKET; NULL or empty: not named.
 * NULL, or what is wrong with the name. */
static inline const char *RepriseFindSockets(const char *named,
                                             RepriseSockets *sockets) {
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  const char *temporary = getenv("TMPDIR");
  char file[64];
  sockets->count = 0;
  sockets->own = -1;
  if (named == NULL || *named == 0) named = getenv("REPRISE_SOCKET");
  if (named != NULL && *named != 0) {
    if (!RepriseAddSocket(sockets, named, ""))
      return "socket_path: must be at most 107 bytes";
    sockets->own = 0;
    return NULL;
  }
  RepriseAddSocket(sockets, REPRISE_SERVICE_SOCKET, "");
  if (runtime != NULL && *runtime == '/' &&
      RepriseAddSocket(sockets, runtime, "/reprise/agent.sock") &&
      RepriseIsOwnFolder(runtime))
    sockets->own = sockets->count - 1;
  if (temporary == NULL || *temporary == 0) temporary = "/tmp";
  snprintf(file, sizeof file, "/reprise-%u/agent.sock", (unsigned)geteuid());
  if (RepriseAddSocket(sockets, temporary, file) && sockets->own < 0)
    sockets->own = sockets->count - 1;
  return NULL;
}

#endif
