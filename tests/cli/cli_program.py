# SPDX-License-Identifier: Apache-2.0
"""The command as a person has it: a program, a folder, an environment; and a small graph."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.findall(
    r'^__version__ = "(.+)"$', (ROOT / "clients/python/src/reprise/__init__.py").read_text(), re.M
)[0]
Graph = dict[str, Any]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def shown(text: str) -> str:
    """Returns what was printed, in which no indented line of ours was printed as a stranger's text
    is, with the end of the line before it written out."""
    assert "\\u000a   " not in text, text
    return text


@dataclass(frozen=True)
class Reprise:
    program: Path
    folder: Path
    environment: dict[str, str]

    def __call__(self, *arguments: str, timeout: float = 120, **environment: str) -> Result:
        return self._run(self.program, *arguments, timeout=timeout, **environment)

    @property
    def path(self) -> str:
        """A PATH on which the program is found, and the Python that runs the tests."""
        folders = (self.program.parent, Path(sys.executable).parent, self.environment["PATH"])
        return os.pathsep.join(map(str, folders))

    def generate(self, *arguments: str) -> Result:
        """The program beside it that writes step graphs of made-up jobs (bench/generate)."""
        return self._run(self.program.with_name("generate"), *arguments, timeout=120)

    def _run(self, program: Path, *arguments: str, timeout: float, **environment: str) -> Result:
        done = subprocess.run(
            [str(program), *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Result(done.returncode, shown(done.stdout), shown(done.stderr))

    def on_terminal(self, *arguments: str, timeout: float = 120, **environment: str) -> str:
        """What a person sees: stdout and stderr on one pseudo-terminal."""
        parent, child = pty.openpty()
        process = subprocess.Popen(
            [str(self.program), *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=child,
            stdout=child,
            stderr=child,
        )
        os.close(child)
        seen = b""
        # At its end a terminal gives an error, not an empty read.
        with contextlib.suppress(OSError):
            while part := os.read(parent, 1 << 16):
                seen += part
        os.close(parent)
        process.wait(timeout=timeout)
        return shown(seen.decode())

    def fails(self, code: int, *arguments: str, **environment: str) -> str:
        """The one sentence of an error: exit code and form are checked here."""
        result = self(*arguments, **environment)
        lines = result.err.splitlines()
        assert result.code == code, result
        assert len(lines) == 1, result.err
        assert lines[0].startswith("reprise: "), lines
        return lines[0].removeprefix("reprise: ")


def small_graph() -> Graph:
    """Two layers forward, a loss, two layers back.

    Static 1000. Saving both activations peaks at b2: 1000 + 100 + 100 + 8 + 100 + 16 = 1324.
    A third storage, x, is alive all along and can be dropped: f0 makes it again in 5 ns, and
    only b1 needs it after f1; so 1324 + 50 without a plan and 1324 with one, for 5 of 96 ns.
    """

    def op(
        ident: int, name: str, phase: str, time_ns: int, reads: list[int], kind: str = "pure"
    ) -> Graph:
        return {
            "id": ident,
            "name": name,
            "phase": phase,
            "time_ns": time_ns,
            "workspace_bytes": 16 if name == "b2" else 0,
            "reads": reads,
            "writes": [ident],
            "mutates": [],
            "kind": kind,
        }

    return {
        "format": "reprise.graph/1",
        "name": "small",
        "source": "test",
        "note": "",
        "static_bytes": 1000,
        "required": [5],
        "storages": [{"id": i, "bytes": b} for i, b in enumerate([50, 100, 100, 8, 100, 100])],
        "ops": [
            op(0, "f0", "forward", 5, []),
            op(1, "f1", "forward", 10, [0]),
            op(2, "f2", "forward", 20, [1]),
            op(3, "loss", "forward", 1, [2], "once"),
            op(4, "b2", "backward", 40, [1, 2, 3]),
            op(5, "b1", "backward", 20, [0, 4]),
        ],
    }
