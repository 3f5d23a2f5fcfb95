// SPDX-License-Identifier: Apache-2.0
#include "server/core/last_resort.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace reprise::server {

namespace {

// What a daemon has when nothing is asked of it: 32 threads, 30 MiB.
constexpr size_t kRoomThreads = 40;
constexpr size_t kRoomBytes = size_t{64} << 20;

constexpr std::string_view kOutOfMemory =
    "out of memory: raise its limits (`ulimit -v`, the control group's) or "
    "give "
    "it less to do; what was acknowledged is stored";
constexpr std::string_view kOutOfThreads =
    "no further thread can be started: raise the limits of memory and "
    "processes "
    "(`ulimit -v`, `ulimit -u`); what was acknowledged is stored";
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

}  // namespace

void InstallLastResort() {
  std::set_terminate(OnTerminate);
  std::signal(SIGABRT, OnAbort);
}

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

}  // namespace reprise::server
