# SPDX-License-Identifier: Apache-2.0
"""Runs every test on one thread with a new seed: tests compare bits and count bytes, not time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reprise.base import saying

# The tests import their neighbours: jobs, nets, referee.
if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _compiled_tape() -> None:
    """Waits for the native engine to be built; jobs do not wait for it."""
    from reprise.torch.compiled.fast import FAST

    folder = FAST.cache_folder()
    assert folder is not None
    FAST.build(folder)


@pytest.fixture(scope="module", autouse=True)
def _nothing_stays_alive() -> Iterator[None]:
    """Clears the caches of torch.compile, whose content would count as memory of later tests. Puts
    aside what is alive before the first test of a file: a capture looks for tensors in the whole
    heap, which has a million objects of torch."""
    import torch._dynamo  # an optimizer's first step imports it

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch._dynamo.reset()
    gc.collect()


@pytest.fixture(autouse=True)
def _state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Separates the files that a session keeps between runs."""
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
    """Forgets internal errors: the line that describes one is printed once per process, but each
    test needs it."""
    monkeypatch.setattr(saying, "_faults", {})


@pytest.fixture(autouse=True)
def _no_op_is_found_unsteady_for_good() -> Iterator[None]:
    """Forgets which ops were seen to give different bits, because later tests would never replay
    them."""
    from reprise.torch.internals import ops

    known = set(ops._unsteady)
    yield
    ops._unsteady.intersection_update(known)


@pytest.fixture(autouse=True)
def _nothing_is_left_on() -> Iterator[None]:
    """Fails if a test leaves a dispatch mode behind, which would change what all later tests see. A
    mode that watches a graph that is kept is meant to stay."""
    from reprise.torch.internals.watch import close_watches

    yield
    close_watches()
    left = torch._C._len_torch_dispatch_stack()
    assert left == 0, f"this test left {left} dispatch modes on"


@pytest.fixture
def compiles_afresh(
    home: Path, agent_library: Path, daemon_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Forgets everything that was compiled before, and lets a private daemon start."""
    monkeypatch.setenv("REPRISE_AGENT", str(agent_library))
    monkeypatch.setenv("REPRISE_DAEMON", str(daemon_binary))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def removed() -> Iterator[None]:
    """Removes what a test has armed."""
    from arming import remove_all

    yield
    remove_all()


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assumes that memory may run out, however small a step is."""
    from reprise.torch.recovery import planned_retry

    monkeypatch.setattr(planned_retry, "LITTLE", 0.0)


@pytest.fixture(params=["compiled", "python"])
def half(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the test with and without the native engine."""
    monkeypatch.setenv("REPRISE_FAST", str(int(request.param == "compiled")))
