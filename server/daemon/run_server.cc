// SPDX-License-Identifier: Apache-2.0
//
// The main function, and what happens where memory or threads run out: one
// sentence and exit code 1, never an abort with a core file.
//
//   at the start          CheckRoom says so before any component is started:
//                         gRPC waits forever for a thread that did not start
//   in a request          that request gets 503 or RESOURCE_EXHAUSTED, and the
//                         daemon goes on (worker_pool.h, net/http_connection.h)
//   anywhere else         the process ends with the sentence; what was
//                         acknowledged is stored, and the spool has the rest
//
// A library that calls abort() because malloc failed is covered too.
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "base/str_cat.h"
#include "server/collect/malloc_policy.h"
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

// What a daemon has when nothing is asked of it: 32 threads, 30 MiB.
constexpr size_t kRoomThreads = 40;
constexpr size_t kRoomBytes = size_t{64} << 20;

constexpr std::string_view kOutOfMemory =
    "out of memory: raise its limits (`ulimit -v`, the control group's) or "
    "give it less to do; what was acknowledged is stored";
constexpr std::string_view kOutOfThreads =
    "no further thread can be started: raise the limits of memory and "
    "processes (`ulimit -v`, `ulimit -u`); what was acknowledged is stored";
constexpr std::string_view kUnknown =
    "an internal error ends it; what was acknowledged is stored";

// Writes "reprised: TEXT" without allocating.
void Say(std::string_view text) {
  char line[512];
  const int size = std::snprintf(line, sizeof(line), "reprised: %.*s\n",
                                 static_cast<int>(text.size()), text.data());
  const size_t bytes =
      std::min(static_cast<size_t>(std::max(size, 0)), sizeof(line) - 1);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, bytes);
}

// Writes a sentence for the exception that is being handled.
void SayCurrent() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    Say(kOutOfMemory);
  } catch (const std::system_error& error) {
    const bool threads =
        error.code() == std::errc::resource_unavailable_try_again;
    Say(threads ? kOutOfThreads : std::string_view(error.what()));
  } catch (const std::exception& error) {
    Say(error.what());
  } catch (...) {
    Say(kUnknown);
  }
}

[[noreturn]] void OnTerminate() {
  if (std::current_exception()) {
    SayCurrent();
  } else {
    Say(kUnknown);
  }
  ::_exit(1);
}

// gRPC calls abort() if malloc returns null. Asks malloc whether that is the
// case; any other abort goes on as it would without this handler.
void OnAbort(int signal) {
  constexpr size_t kProbe = size_t{1} << 20;
  void* probe = std::malloc(kProbe);
  if (probe == nullptr) {
    Say(kOutOfMemory);
    ::_exit(1);
  }
  std::free(probe);
  std::signal(signal, SIG_DFL);
}

// From now on, std::terminate writes one sentence to stderr and ends the
// process with code 1, as does abort() if memory has run out; any other abort
// is one. Nothing is unwound: destructors would wait for threads.
void InstallLastResort() {
  std::set_terminate(OnTerminate);
  std::signal(SIGABRT, OnAbort);
}

// Starts as many threads as a daemon has, and takes as much memory, and gives
// all back. RESOURCE_EXHAUSTED: there is not as much.
Status CheckRoom() {
  const std::unique_ptr<void, void (*)(void*)> memory(std::malloc(kRoomBytes),
                                                      std::free);
  if (memory == nullptr) return ResourceExhausted(std::string(kOutOfMemory));
  std::mutex mutex;
  std::condition_variable changed;
  bool all = false;
  bool failed = false;
  std::vector<std::thread> threads;
  try {
    threads.reserve(kRoomThreads);
    while (threads.size() < kRoomThreads) {
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return all; });
      });
    }
  } catch (const std::exception&) {
    failed = true;
  }
  {
    const std::lock_guard lock(mutex);
    all = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
  if (!failed) return OkStatus();
  return ResourceExhausted(std::string(kOutOfThreads));
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
