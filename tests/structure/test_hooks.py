# SPDX-License-Identifier: Apache-2.0
"""The hooks of a commit: each mends or refuses what scripts/test lint would refuse."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOOK = re.compile(r"- id: (\S+)\n(.*?)(?=\n *(?:#[^\n]*\n *)?- id:|\Z)", re.S)
ENTRY = re.compile(r"entry: (?:>-)?(.*?)\n *files: (\S+)", re.S)


def hooks() -> dict[str, tuple[list[str], re.Pattern[str]]]:
    """By id: the command, and which files it is for."""
    found = {}
    for name, text in HOOK.findall((ROOT / ".pre-commit-config.yaml").read_text()):
        entry = ENTRY.search(text)
        assert entry is not None
        found[name] = (shlex.split(" ".join(entry[1].split())), re.compile(entry[2]))
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the tools and their configuration."""
    for name in (
        ".clang-format",
        "clients/python/pyproject.toml",
        "web/.prettierrc.json",
        "web/eslint.config.js",
        "web/package.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "web/node_modules").symlink_to(ROOT / "web/node_modules")
    return tmp_path


@pytest.mark.parametrize(
    ("hook", "path", "good", "bad"),
    [
        ("clang-format", "base/a.h", "int a;\n", "int  a ;\n"),
        ("ruff-check", "tests/cli/a.py", "A = 1\n", "import os\n"),
        ("ruff-format", "tests/cli/a.py", 'A = "1"\n', "A  = '1'\n"),
        ("web", "web/src/a.ts", "export const a = '1';\n", 'export const a  = "1";\n'),
    ],
)
def test_a_hook_stops_what_the_linters_refuse(
    checkout: Path, hook: str, path: str, good: str, bad: str
) -> None:
    command, files = hooks()[hook]
    file = checkout / path
    file.parent.mkdir(parents=True, exist_ok=True)

    def passes(text: str) -> bool:
        file.write_text(text)
        done = subprocess.run([*command, path], cwd=checkout, capture_output=True, text=True)
        return done.returncode == 0 and file.read_text() == text

    assert files.search(path)
    assert passes(good)
    assert not passes(bad)


def test_there_are_four_hooks_and_none_comes_from_elsewhere() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()

    assert sorted(hooks()) == ["clang-format", "ruff-check", "ruff-format", "web"]
    assert re.findall(r"- repo: (.+)", text) == ["local"]
