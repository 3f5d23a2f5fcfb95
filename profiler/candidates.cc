#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profiler/connection.h"

namespace reprise::profiler {
namespace {

void Add(Connection *connection, const char *folder, const char *file) {
  char *path = connection->candidates[connection->candidate_count];
  const int n = snprintf(path, kSocketPathBytes, "%s%s", folder, file);
  if (n > 0 && static_cast<size_t>(n) < kSocketPathBytes)
    ++connection->candidate_count;
}

}  // namespace

const char *ResolveCandidates(const char *socket_path, Connection *connection) {
  connection->candidate_count = 0;
  if (socket_path == nullptr || *socket_path == 0)
    socket_path = getenv("REPRISE_SOCKET");
  if (socket_path != nullptr && *socket_path != 0) {
    if (strlen(socket_path) >= kSocketPathBytes)
      return "socket_path: must be at most 107 bytes";
    Add(connection, socket_path, "");
    return nullptr;
  }
  Add(connection, "/run/reprise/agent.sock", "");
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/')
    Add(connection, runtime, "/reprise/agent.sock");
  const char *temporary = getenv("TMPDIR");
  if (temporary == nullptr || *temporary == 0) temporary = "/tmp";
  char file[64];
  snprintf(file, sizeof file, "/reprise-%u/agent.sock", geteuid());
  Add(connection, temporary, file);
  return nullptr;
}

}  // namespace reprise::profiler
