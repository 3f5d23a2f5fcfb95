// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/server/open_page.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "base/str_cat.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/runtime_paths.h"

extern char** environ;

namespace reprise::cli {

Status OpenPage(const std::string& url) {
  Status no_desktop = FailedPrecondition(
      StrCat("there is no desktop here; open ", url, " in a browser"));
  if (std::getenv("DISPLAY") == nullptr &&
      std::getenv("WAYLAND_DISPLAY") == nullptr) {
    return no_desktop;
  }
  const std::filesystem::path folder =
      std::filesystem::path(PrivateSocket()).parent_path();
  const std::string page = (folder / "open.html").string();
  const mode_t mask = umask(0077);
  const Status written =
      WriteFile(page,
                StrCat("<!doctype html><meta charset=\"utf-8\"><meta "
                       "http-equiv=\"refresh\" content=\"0;url=",
                       url, "\"><title>Reprise</title>\n"),
                /*force=*/true);
  umask(mask);
  RETURN_IF_ERROR(written);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int fd : {0, 1, 2}) {
    posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
  }
  std::string program = "xdg-open";
  std::string argument = page;
  char* const argv[] = {program.data(), argument.data(), nullptr};
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, "xdg-open", &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return no_desktop;
  int status = 0;
  if (waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
      WEXITSTATUS(status) == 0) {
    return OkStatus();
  }
  return no_desktop;
}

}  // namespace reprise::cli
