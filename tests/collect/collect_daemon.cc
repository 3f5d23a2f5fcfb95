// SPDX-License-Identifier: Apache-2.0
//
// The collector alone in a process, for tests that kill, stop and starve it.
//
//   collect_daemon SOCKET SPOOL SERVER [TMPFS_KIB]
//
// With TMPFS_KIB the folder of SPOOL becomes a file system of that size,
// visible to this process only. Prints "ready", or the error; then obeys these
// commands:
//     degraded        prints Collector::degraded()
//     fill | free     fills that file system, empties it again
//     drain           Drain of 30 s: "ok" or the error
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>

#include "server/collect/collector.h"

namespace {

std::string g_filler;

void WriteText(const char* path, const std::string& text) {
  std::ofstream(path) << text;
}

// Must run before any thread starts: only a single-threaded process can enter a
// new user namespace.
bool MountSmall(const std::string& folder, const std::string& kib) {
  const auto uid = std::to_string(geteuid()), gid = std::to_string(getegid());
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  WriteText("/proc/self/setgroups", "deny");
  WriteText("/proc/self/uid_map", uid + " " + uid + " 1");
  WriteText("/proc/self/gid_map", gid + " " + gid + " 1");
  return mount("tmpfs", folder.c_str(), "tmpfs", 0,
               ("size=" + kib + "k").c_str()) == 0;
}

void Fill() {
  const int fd =
      open(g_filler.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const std::string block(4096, 'x');
  while (write(fd, block.data(), block.size()) > 0) {
  }
  close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string spool = argv[2];
  const std::string folder = spool.substr(0, spool.rfind('/'));
  g_filler = folder + "/filler";
  if (argc > 4 && !MountSmall(folder, argv[4])) {
    std::cout << "cannot mount: " << strerror(errno) << std::endl;
    return 0;
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  reprise::server::CollectorOptions options;
  options.agent_socket = argv[1];
  options.spool_path = spool;
  options.channel = grpc::CreateCustomChannel(
      argv[3], grpc::InsecureChannelCredentials(), arguments);
  options.version = "test";
  auto collector = reprise::server::Collector::Start(std::move(options));
  if (!collector.ok()) {
    std::cout << collector.status().message() << std::endl;
    return 1;
  }
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "degraded") {
      std::cout << (*collector)->degraded() << std::endl;
    } else if (line == "fill") {
      Fill();
      std::cout << "ok" << std::endl;
    } else if (line == "free") {
      unlink(g_filler.c_str());
      std::cout << "ok" << std::endl;
    } else if (line == "drain") {
      const auto drained = (*collector)->Drain(std::chrono::seconds(30));
      std::cout << (drained.ok() ? "ok" : drained.message()) << std::endl;
    }
  }
  return 0;
}
