# SPDX-License-Identifier: Apache-2.0
"""The tables of failures and attacks name tests: every row has some, each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


def rows(name: str) -> list[tuple[str, list[str]]]:
    """Of each row of a table: what its first cell says, and the tests in its last."""
    table = [line for line in (TESTS / name).read_text().splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    return [(row[0], re.findall(r"`([\w.]+)`", row[-1])) for row in cells]


@pytest.mark.parametrize(("table", "least"), [("failures.md", 16), ("attacks.md", 23)])
def test_every_row_names_tests_that_exist(table: str, least: int) -> None:
    found = rows(table)
    assert len(found) >= least
    assert [what for what, tests in found if not tests] == []
    assert {test for _, tests in found for test in tests} - known() == set()


def test_the_representative_tests_of_the_adapter_exist() -> None:
    folder = TESTS / "python/pytorch"
    lines = (folder / "representative.txt").read_text().splitlines()
    named = [line.partition("::") for line in lines if line and not line.startswith("#")]
    assert len(named) >= 25
    for file, _, test in named:
        assert (folder / file).is_file(), file
        assert not test or test in PYTHON.findall((folder / file).read_text()), test


def test_no_finding_is_without_a_row() -> None:
    assert {finding for finding, _ in rows("attacks.md")} == {f"F{n}" for n in range(1, 24)}


def test_of_every_finding_the_page_says_what_was_taken_out_to_see_its_tests_fail() -> None:
    shown = (TESTS / "attacks.md").read_text().partition("## What was taken out")[2]
    assert re.findall(r"^- (F\d+): ", shown, re.MULTILINE) == [f"F{n}" for n in range(1, 24)]
