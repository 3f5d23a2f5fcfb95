# SPDX-License-Identifier: Apache-2.0
"""The failure table names tests: every row has some, and each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

CPP = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
PYTHON = re.compile(r"^def (test_\w+)\(", re.MULTILINE)


def known() -> set[str]:
    found: set[str] = set()
    for path in TESTS.rglob("*.cc"):
        found |= {f"{suite}.{name}" for suite, name in CPP.findall(path.read_text())}
    for path in TESTS.rglob("test_*.py"):
        found |= set(PYTHON.findall(path.read_text()))
    return found


def rows() -> dict[str, list[str]]:
    """Failure -> the tests named in its row."""
    table = [line for line in (TESTS / "failures.md").read_text().splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    return {failure: re.findall(r"`([\w.]+)`", tests) for failure, _, tests in cells}


def test_every_row_of_the_failure_table_names_tests() -> None:
    assert len(rows()) >= 16
    assert [failure for failure, tests in rows().items() if not tests] == []


def test_every_test_the_failure_table_names_exists() -> None:
    named = {test for tests in rows().values() for test in tests}
    assert named - known() == set()
