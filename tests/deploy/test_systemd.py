"""The units, by systemd's own judgement. They are not started: that needs a systemd that runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy/systemd"


def analyze(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def with_a_program_that_is_there(unit: Path, folder: Path) -> Path:
    """The same unit; what it starts is looked for by the verifier."""
    text = unit.read_text()
    copy = folder / unit.name
    copy.write_text(text.replace("/usr/bin/reprised", str(ROOT / "build/bin/reprised")))
    assert copy.read_text() != text
    return copy


def test_the_system_unit_is_valid(tmp_path: Path) -> None:
    done = analyze("verify", with_a_program_that_is_there(UNITS / "reprised.service", tmp_path))

    assert (done.returncode, done.stderr) == (0, "")


def test_the_system_unit_is_exposed_little() -> None:
    # 0 is best, 100 worst; below 20 systemd says OK.
    done = analyze("security", "--offline=true", "--threshold=20", UNITS / "reprised.service")

    assert done.returncode == 0, done.stdout


def test_the_user_unit_is_valid(tmp_path: Path) -> None:
    # A user's manager has a runtime folder; where nobody is logged in, there is none.
    tmp_path.chmod(0o700)
    unit = UNITS / "user/reprised.service"
    done = analyze("verify", "--user", unit, XDG_RUNTIME_DIR=str(tmp_path))

    assert (done.returncode, done.stderr) == (0, "")
