# SPDX-License-Identifier: Apache-2.0
"""What Reprise uses of torch is on one table, which holds for the installed release."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from reprise.torch.internals import contracts, versions
from reprise.torch.internals.contracts import CONTRACTS, NEEDED, Contract
from reprise.torch.session import start

ROOT = Path(__file__).resolve().parents[4]
PACKAGE = ROOT / "clients/python/src/reprise"
# An attribute of a class, which the table's way of looking does not find.
ELSEWHERE = {"torch.autograd.Variable._execution_engine.queue_callback"}
PRIVATE = re.compile(r"\._(?!_)")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """Forgets what was found, before and after the test."""
    for once in (contracts.lost, contracts.missing):
        once.cache_clear()
    yield
    for once in (contracts.lost, contracts.missing):
        once.cache_clear()


def private_names(file: Path) -> Iterator[str]:
    """Yields the names of torch with an underscore that a file imports or reads."""
    tree = ast.parse(file.read_text())
    known = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            for name in node.names:
                known[name.asname or name.name] = f"{node.module}.{name.name}"
                yield f"{node.module}.{name.name}"
    read = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(tree):
        parts: list[str] = []
        at: ast.AST = node
        while isinstance(at, ast.Attribute):
            parts.insert(0, at.attr)
            at = at.value
        if parts and id(node) not in read and isinstance(at, ast.Name) and at.id in known:
            yield ".".join([known[at.id], *parts])


def test_every_private_name_of_torch_in_the_package_is_on_the_table() -> None:
    table = {*NEEDED, *(contract.name for contract in CONTRACTS)}
    files = sorted(PACKAGE.rglob("*.py"))
    used = {name for file in files for name in private_names(file) if PRIVATE.search(name)}

    assert len(used) > 40
    unknown = {
        name
        for name in used - ELSEWHERE
        if not any(f"{name}.".startswith(f"{row}.") for row in table)
        # A module, whose contents are on the table.
        and not any(row.startswith(f"{name}.") for row in table)
        # Settings of kernels, looked for one by one (ambient.py), and what every GPU's build has.
        and not re.match(r"torch\._C\._([gs]et_\w+|cuda_[gs]et(Device|CurrentRawStream))$", name)
    }
    assert unknown == set()


def test_the_table_holds_for_the_installed_release() -> None:
    here = versions._release(torch.__version__)
    assert here is not None

    assert contracts.missing() == ""
    for row in CONTRACTS:
        since = versions._release(row.since or ".".join(map(str, versions.OLDEST_TORCH)))
        if not row.cuda or torch.version.cuda is not None:
            assert row.there() == (since is not None and since <= here), row.name


def test_a_module_that_is_not_loaded_is_read_and_not_imported() -> None:
    module = "torch.utils.bundled_inputs"
    known, other = Contract(f"{module}.bundle_inputs", ""), Contract(f"{module}.bundle_in", "")

    assert module not in sys.modules
    assert (known.there(), known.get()) == (True, None)
    assert not other.there()
    assert not Contract("torch.utils.no_such_module.name", "").there()
    assert module not in sys.modules


def test_what_is_missing_is_named_with_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    before = contracts.lost()
    contracts.lost.cache_clear()
    monkeypatch.setattr(contracts, "CONTRACTS", (*CONTRACTS, Contract("torch.gone", "all waits")))

    (found,) = set(contracts.lost()) - set(before)
    assert found == "torch.gone: all waits"
    assert found in versions.described()[1]


def test_a_torch_without_a_name_that_is_needed_trains_without_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert start._unsupported(nn.Linear(2, 2)) == ""
    contracts.missing.cache_clear()
    monkeypatch.delattr(torch._C, "_dispatch_keys")

    why = f"torch {torch.__version__} has no torch._C._dispatch_keys"
    assert start._unsupported(nn.Linear(2, 2)) == why
    health, found, advice = versions.described()
    assert (health, found) == ("warning", f"{why}: no eager model is planned")
    assert advice


def test_the_documentation_has_the_same_table() -> None:
    text = (ROOT / "docs/install.md").read_text()

    rows = [f"| `{c.name}` | {c.since or '2.8'} | {c.without} |" for c in CONTRACTS]

    assert "\n".join(rows) in text
    for minor in range(versions.OLDEST_TORCH[1], versions.NEWEST_TORCH[1] + 1):
        assert re.search(rf"^\|[^|]*\b2\.{minor}\.\d+\b", text, re.MULTILINE), f"2.{minor}"
