# SPDX-License-Identifier: Apache-2.0
"""One thread and a fresh seed for every test: they compare bits and count bytes, not time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reprise import saying

# The tests import their neighbours: jobs, nets, referee.
if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "e2e: needs the built agent and daemon")


@pytest.fixture(scope="session", autouse=True)
def _compiled_tape() -> None:
    """Jobs do not wait for it; tests do."""
    from reprise.torch.compiled.fast import FAST

    folder = FAST.cache_folder()
    assert folder is not None
    FAST.build(folder)


@pytest.fixture(scope="module", autouse=True)
def _nothing_stays_alive() -> Iterator[None]:
    """What torch.compile has in its caches counts as memory of the tests that come after."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()


@pytest.fixture(autouse=True)
def _state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a session keeps between runs is kept apart."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _faults_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that says what a fault is comes once in a process, and a test is one to itself."""
    monkeypatch.setattr(saying, "_faults", {})


@pytest.fixture(autouse=True)
def _no_op_is_found_unsteady_for_good() -> Iterator[None]:
    """An op that one test saw make other bits would never run again in those after it."""
    from reprise.torch.internals import ops

    known = set(ops._unsteady)
    yield
    ops._unsteady.intersection_update(known)


@pytest.fixture(autouse=True)
def _nothing_is_left_on() -> Iterator[None]:
    """A dispatch mode that a test leaves behind would change what all later ones see. One that
    watches a graph that is kept is meant to stay."""
    from reprise.torch.internals.watch import close_watches

    yield
    close_watches()
    left = torch._C._len_torch_dispatch_stack()
    assert left == 0, f"this test left {left} dispatch modes on"


@pytest.fixture
def compiles_afresh(
    home: Path, agent_library: Path, daemon_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Nothing that was compiled before is known, and a private daemon can be started."""
    monkeypatch.setenv("REPRISE_AGENT", str(agent_library))
    monkeypatch.setenv("REPRISE_DAEMON", str(daemon_binary))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def removed() -> Iterator[None]:
    """What a test arms is taken off again."""
    from arming import remove_all

    yield
    remove_all()


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a step is, memory may run out in it."""
    from reprise.torch.recovery import planned_retry

    monkeypatch.setattr(planned_retry, "LITTLE", 0.0)


@pytest.fixture(params=["compiled", "python"])
def half(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the compiled half of the tape."""
    monkeypatch.setenv("REPRISE_FAST", str(int(request.param == "compiled")))
