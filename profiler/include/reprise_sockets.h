/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket paths at which the daemon and the jobs of a machine find each
 * other. The agent, the daemon and the command use the same list, in order:
 *
 *   REPRISE_SOCKET                            alone, if set
 *   /run/reprise/agent.sock                   the service of the machine
 *   $XDG_RUNTIME_DIR/reprise/agent.sock       if that is an absolute path
 *   ${TMPDIR:-/tmp}/reprise-<uid>/agent.sock
 *
 * A daemon that a user starts listens at the first path that is not the
 * service's. It skips $XDG_RUNTIME_DIR if that is not a writable folder of the
 * user, as after `sudo`. The Python package implements the same rules
 * (reprise/agent/daemon.py); tests/fixtures/socket_paths.json checks both.
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
  int own; /* index of the path where a daemon of this user listens; -1: none is
              short enough */
} RepriseSockets;

/* Adds a path. Returns 1, or 0 if it is too long for a socket. */
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

/* Fills the list. `named`, unless NULL or empty, overrides REPRISE_SOCKET.
 * Returns NULL, or what is wrong with the path. */
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
