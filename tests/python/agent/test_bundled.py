"""Programs that come with the package: they are found, or a sentence says that they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reprise.agent import bundled, daemon

ROOT = Path(__file__).resolve().parents[3]


def installation(folder: Path, *programs: str) -> Path:
    """A package folder outside any checkout, with programs that say how they were called."""
    package = folder / "site-packages/reprise"
    (package / "bin").mkdir(parents=True)
    for name in programs:
        program = package / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" "$REPRISE_PYTHON"\nexit 7\n')
        program.chmod(0o755)
    shutil.copytree(
        ROOT / "clients/python/src/reprise",
        package,
        ignore=shutil.ignore_patterns("__pycache__", "torch", "tensorflow"),
        dirs_exist_ok=True,
    )
    return package


def script(package: Path, function: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Returns a console script of that installation, as pip writes it."""
    code = f"import sys; from reprise.agent.bundled import {function}; sys.exit({function}())"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REPRISE_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**environment, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
    )


def test_a_console_script_becomes_the_program(tmp_path: Path) -> None:
    done = script(installation(tmp_path, "reprise"), "command", "plan", "a b")

    assert done.returncode == 7, done.stderr
    assert done.stdout == f"reprise plan a b {sys.executable}\n"


def test_the_package_as_a_program_is_the_command(tmp_path: Path) -> None:
    package = installation(tmp_path, "reprise")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REPRISE_")}

    done = subprocess.run(
        [sys.executable, "-m", "reprise", "plan", "a b"],
        env={**environment, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 7, done.stderr
    assert done.stdout == f"reprise plan a b {sys.executable}\n"


def test_an_installation_without_programs_says_what_to_do(tmp_path: Path) -> None:
    done = script(installation(tmp_path), "daemon")

    assert done.returncode == 1
    assert done.stderr.startswith("reprise: reprised: this installation has no such program")
    assert "install a wheel for this platform" in done.stderr


def test_an_installed_package_starts_its_own_daemon_before_one_in_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = installation(tmp_path, "reprised")
    other = tmp_path / "reprised"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("REPRISE_DAEMON", raising=False)
    monkeypatch.setattr(bundled, "PACKAGE", package)

    assert daemon._binary() == package / "bin/reprised"


def test_a_checkout_is_distinguished_from_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bundled.checkout() == ROOT

    monkeypatch.setattr(bundled, "PACKAGE", installation(tmp_path))

    assert bundled.checkout() is None
