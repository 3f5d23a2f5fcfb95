# SPDX-License-Identifier: Apache-2.0
"""What `reprise doctor` says, by check."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli_program import Reprise

Check = dict[str, str]


def lines(reprise: Reprise, *arguments: str, code: int = 0, **environment: str) -> list[Check]:
    result = reprise("doctor", "--json", *arguments, **environment)
    assert result.code == code, result
    said = result.json()
    assert said["broken"] == (code == 1)
    found: list[Check] = said["checks"]
    return found


def checks(
    reprise: Reprise, *arguments: str, code: int = 0, **environment: str
) -> dict[str, Check]:
    """The worst line of each name: a part may have several."""
    order = ("problem", "warning", "ok")
    found = lines(reprise, *arguments, code=code, **environment)
    worst = sorted(found, key=lambda check: order.index(check["health"]), reverse=True)
    return {check["check"]: check for check in worst}


@contextmanager
def for_nobody(reprise: Reprise, *parts: str) -> Iterator[Path]:
    """A folder of nobody's own, on a path that nobody may read, with parts of the build."""
    folder = Path(subprocess.check_output(["mktemp", "-d", "/tmp/rpXXXXXX"], text=True).strip())
    try:
        for part in ("bin/reprise", *parts):
            (folder / part).parent.mkdir(exist_ok=True)
            shutil.copy(reprise.program.parent.parent / part, folder / part)
        shutil.chown(folder, "nobody")
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


def doctor_of_nobody(
    folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`reprise doctor` of that folder, as a user who is not root."""
    return subprocess.run(
        [folder / "bin/reprise", "doctor", *arguments],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "LC_ALL": "C.UTF-8",
            **environment,
        },
        user="nobody",
        group="nogroup",
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
