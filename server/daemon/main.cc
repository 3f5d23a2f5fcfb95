// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/daemon.h"

int main(int argc, char** argv) {
  return reprise::server::RunServer(argc, argv);
}
