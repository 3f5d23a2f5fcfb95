// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <thread>

#include "base/str_cat.h"
#include "server/collect/malloc_policy.h"
#include "server/core/last_resort.h"
#include "server/core/log.h"
#include "server/daemon/daemon.h"

namespace reprise::server {

namespace {

constexpr auto kPatience = std::chrono::seconds(10);

sigset_t EndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // The terminal was closed. nohup ignores this signal, so it stays ignored.
  struct sigaction before {};
  if (::sigaction(SIGHUP, nullptr, &before) == 0 &&
      before.sa_handler != SIG_IGN) {
    sigaddset(&signals, SIGHUP);
  }
  // Asks a private daemon to make way for another.
  sigaddset(&signals, SIGUSR1);
  return signals;
}

// Waits for a signal; returns it, or 0 after `timeout`.
int AwaitSignal(const sigset_t& signals, std::chrono::milliseconds timeout) {
  const timespec wait{.tv_sec = timeout.count() / 1000,
                      .tv_nsec = timeout.count() % 1000 * 1'000'000};
  const int signal = sigtimedwait(&signals, nullptr, &wait);
  return signal > 0 ? signal : 0;
}

// Runs `work`; meanwhile a further signal ends the process at once.
template <typename Work>
void WithSecondSignal(Daemon& daemon, const sigset_t& signals, Work work) {
  std::atomic<bool> done{false};
  std::thread watch([&] {
    while (!done) {
      const int signal = AwaitSignal(signals, std::chrono::milliseconds(50));
      if (signal == 0 || signal == SIGUSR1) continue;
      LogWarning("second_signal",
                 "second signal: ending now; what was acknowledged is stored");
      daemon.Abandon();
      _exit(1);
    }
  });
  work();
  done = true;
  watch.join();
}

// Takes as many descriptors as this process may have: clients that only connect
// use them up (net/listener.h).
void RaiseDescriptors() {
  constexpr rlim_t kMost = 65536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMost));
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int RunServer(int argc, char** argv) {
  const ParsedOptions parsed = ParseDaemonOptions(argc, argv);
  if (parsed.exit) return parsed.exit_code;
  SetLogLevel(parsed.options.log_level);
  SetLogFormat(parsed.options.log_format);
  // Everything the daemon writes is private: database, spool, uploads, token.
  ::umask(0077);
  KeepFreedBuffers();

  RaiseDescriptors();
  InstallLastResort();
  if (const Status room = CheckRoom(); !room.ok()) {
    std::fprintf(stderr, "reprised: %s\n", room.message().c_str());
    return 1;
  }

  // Before any thread starts, so that all of them inherit the mask.
  const sigset_t signals = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  StatusOr<std::unique_ptr<Daemon>> started = Daemon::Start(parsed.options);
  if (!started.ok()) {
    std::fprintf(stderr, "reprised: %s\n", started.status().message().c_str());
    return 1;
  }
  const std::unique_ptr<Daemon> daemon = *std::move(started);
  const bool is_private = parsed.options.private_daemon;
  const auto tick = std::chrono::milliseconds(is_private ? 250 : 1000);
  while (true) {
    if (const int signal = AwaitSignal(signals, tick); signal == SIGUSR1) {
      if (!daemon->MayYield()) continue;
      LogInfo("shutting_down", "another daemon takes over: shutting down");
      break;
    } else if (signal != 0) {
      LogInfo("shutting_down", signal == SIGINT ? "interrupted: shutting down"
                                                : "told to end: shutting down");
      break;
    }
    if (daemon->Tick()) {
      LogInfo("shutting_down",
              "the last job and the last reader are gone: shutting down");
      break;
    }
  }
  WithSecondSignal(*daemon, signals, [&] { daemon->Stop(kPatience); });
  LogInfo("stopped", "stopped");
  return 0;
}

}  // namespace reprise::server
