// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/core/interrupt.h"

#include <csignal>

namespace reprise::cli {
namespace {

volatile std::sig_atomic_t g_asked = 0;

void OnSignal(int) { g_asked = 1; }

}  // namespace

CatchInterrupt::CatchInterrupt() {
  g_asked = 0;
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESETHAND;  // a second signal has its default effect
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

CatchInterrupt::~CatchInterrupt() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool CatchInterrupt::Asked() { return g_asked != 0; }

}  // namespace reprise::cli
