# SPDX-License-Identifier: Apache-2.0
"""The kit's daemon, one for all rows of a script, which find it by its socket."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

START_S = 20


class Daemon:
    """Runs while its script does. A row that ends it does not take it from the next one."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.socket = scratch / "agent.sock"
        self.child: subprocess.Popen[bytes] | None = None
        os.environ["REPRISE_SOCKET"] = str(self.socket)

    def ensure(self) -> str:
        """Starts it where it is not running. Returns why it does not run; empty: it does. Rows
        that need no plan can do without."""
        if self.child is not None and self.child.poll() is None:
            return ""
        self.socket.unlink(missing_ok=True)
        command = [os.environ["REPRISE_DAEMON"], "--agent-socket", str(self.socket)]
        command += ["--data-dir", str(self.scratch / "data"), "--listen", "127.0.0.1:0"]
        with (self.scratch / "daemon.log").open("ab") as log:
            try:
                self.child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            except OSError as error:
                return str(error)
        until = time.monotonic() + START_S
        while not self.socket.exists() and time.monotonic() < until:
            if self.child.poll() is not None:
                break
            time.sleep(0.02)
        if self.socket.exists():
            return ""
        said = (self.scratch / "daemon.log").read_text(errors="replace").strip().splitlines()
        return (said or ["it said nothing"])[-1]

    def stop(self) -> None:
        """Ends it, within seconds."""
        if self.child is None or self.child.poll() is not None:
            return
        self.child.terminate()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
