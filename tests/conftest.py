# SPDX-License-Identifier: Apache-2.0
"""Labels of the Python tests, by what a test starts, and what `scripts/test quick` leaves out.

long      takes above 4 s on two quiet cores: in `scripts/test long`, every night; of a test that is
          `mostly_long(count)`, all cases but the first ones
process   starts programs: a daemon, the command, another Python
train     trains for more than some steps

A test of a folder or module that is named here has its label; others say theirs themselves. With
`--quick` labelled tests are left out, and one that takes above a second of processor time fails: it
wants a label.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

LABELS = {
    "long": "takes above 4 s: every night",
    "process": "starts programs",
    "train": "trains for more than some steps",
    "e2e": "needs the built agent and daemon",
}
ROOT = Path(__file__).resolve().parent
FOLDERS = {"cli": "process", "gpu": "process", "python/pytorch/whole_jobs": "train"}
LIMIT_S = 1.0  # of processor time


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only what has no label, and is quick")


SOME = "mostly_long(count): of its cases, only the first `count` are not long"


def pytest_configure(config: pytest.Config) -> None:
    for label, meaning in LABELS.items():
        config.addinivalue_line("markers", f"{label}: {meaning}")
    config.addinivalue_line("markers", SOME)


# Before cases are chosen by their marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases: Counter[str] = Counter()
    for item in items:
        some = item.get_closest_marker("mostly_long")
        if some is not None:
            of = item.nodeid.partition("[")[0]
            cases[of] += 1
            if cases[of] > some.args[0]:
                item.add_marker("long")
        path = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
        for folder, label in FOLDERS.items():
            if path.startswith(f"{folder}/"):
                item.add_marker(label)
        if item.get_closest_marker("e2e") is not None:
            item.add_marker("process")
    if config.getoption("--quick"):
        labels = ("long", "process", "train")
        left_out = [item for item in items if any(map(item.get_closest_marker, labels))]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    began = time.process_time()
    yield
    took = time.process_time() - began
    if item.config.getoption("--quick") and took > LIMIT_S:
        pytest.fail(f"took {took:.1f} s of processor time: mark it process, train or long")
