# SPDX-License-Identifier: Apache-2.0
"""The meters: what they count, and that they leave nothing behind."""

import gc
import json
import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from reprise.base.errors import RepriseError  # noqa: E402
from reprise.torch.internals import guard  # noqa: E402
from reprise.torch.meter import probe  # noqa: E402
from reprise.torch.meter.cuda_meter import CudaMeter  # noqa: E402
from reprise.torch.meter.meter import ProbeMeter  # noqa: E402
from reprise.torch.meter.state import open_meter  # noqa: E402
from reprise.torch.meter.storage_meter import StorageMeter  # noqa: E402

FLOATS = 1000  # 4,000 bytes


@pytest.fixture(autouse=True)
def _no_garbage() -> Iterator[None]:
    """Collects garbage of earlier tests, which would otherwise be freed and counted in the middle
    of a test."""
    gc.collect()
    yield
    for left in list(ProbeMeter._all):  # where a test failed before it stopped its meter
        left.stop()


@pytest.fixture
def meter():
    found = ProbeMeter()
    yield found
    found.stop()


def test_the_best_meter_for_the_cpu_is_the_exact_one():
    found = open_meter("cpu")

    assert (found.name, found.exact, found.why) == ("probe", True, "")


def test_live_and_peak_start_at_the_baseline(meter):
    meter.start(500)

    assert (meter.live(), meter.peak()) == (500, 500)


def test_live_follows_every_tensor_and_peak_stays(meter):
    meter.start(0)

    a = torch.empty(FLOATS)
    b = torch.empty(FLOATS)
    assert (meter.live(), meter.peak()) == (8000, 8000)
    del a
    assert (meter.live(), meter.peak()) == (4000, 8000)
    meter.reset_peak()
    assert (meter.live(), meter.peak()) == (4000, 4000)
    del b
    assert meter.live() == 0


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(FLOATS // 4), lambda: torch.tensor([0.0] * (FLOATS // 4))],
    ids=["op", "with the interpreter held"],
)
def test_an_allocation_above_the_limit_waits_for_another_thread_to_free(
    meter, allocate, monkeypatch
):
    monkeypatch.setattr("reprise.torch.meter.meter.LATE_NS", 60 * 10**9)
    meter.start(0)
    held, begins = [torch.empty(FLOATS, dtype=torch.uint8)], threading.Event()

    def frees() -> None:
        begins.wait()
        held.clear()

    other = threading.Thread(target=frees)
    other.start()
    assert not meter.wait_above(FLOATS)

    begins.set()
    made = allocate()

    ended = meter.wait_above(None)
    other.join()
    assert (meter.live(), meter.peak(), ended) == (FLOATS, FLOATS, False)
    del made


def test_an_allocation_that_finds_no_room_in_time_is_made_all_the_same(meter, monkeypatch):
    monkeypatch.setattr("reprise.torch.meter.meter.LATE_NS", 10**6)
    meter.start(0)
    meter.wait_above(FLOATS)

    made = torch.empty(FLOATS)

    assert meter.peak() == 4 * FLOATS
    assert meter.wait_above(None)  # it waited in vain
    again = torch.empty(FLOATS)
    assert not meter.wait_above(None)
    del made, again


def test_views_cost_nothing_and_keep_their_storage(meter):
    meter.start(0)
    a = torch.empty(FLOATS)

    view = a[10:20].t()
    del a

    assert meter.live() == 4000
    del view
    assert meter.live() == 0


def test_a_storage_that_grows_is_counted(meter):
    meter.start(0)
    a = torch.empty(10)

    a.resize_(FLOATS)

    assert meter.live() == 4000


def test_bytes_alive_before_the_start_are_never_subtracted():
    before = torch.empty(FLOATS)
    meter = ProbeMeter()
    meter.start(4000)

    del before

    assert meter.live() == 4000
    meter.stop()


def test_tensors_from_before_the_start_are_subtracted_if_the_meter_was_given_them():
    before = torch.empty(FLOATS)
    parameter = nn.Parameter(torch.empty(FLOATS))
    meter = ProbeMeter()
    meter.start(8000, [before, before[1:], parameter])
    begin = meter.live()

    del before
    assert meter.live() - begin == -4000
    parameter.data = torch.empty(2 * FLOATS)
    assert meter.live() - begin == 0
    del parameter
    gc.collect()
    assert meter.live() - begin == -8000
    meter.stop()


def test_blocks_without_a_tensor_that_an_earlier_meter_counted_count_in_the_next():
    first = ProbeMeter()
    leaf = torch.zeros(FLOATS, requires_grad=True)
    first.start(4000, [leaf])
    others = first.live() - 4000  # of tests before this one
    loss = leaf.exp().sum()  # the graph holds 4,000 bytes that nobody else has
    first.stop()

    second = ProbeMeter()
    second.start(4004, [leaf, loss])

    assert second.live() - others == 8004
    del loss
    assert second.live() - others == 4000
    second.stop()


def test_a_tensor_freed_by_another_thread_is_seen(meter):
    meter.start(0)
    held = [torch.empty(FLOATS)]

    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()

    assert meter.live() == 0


def test_a_tensor_made_by_another_thread_is_seen(meter):
    meter.start(0)
    held = []

    thread = threading.Thread(target=lambda: held.append(torch.empty(FLOATS)))
    thread.start()
    thread.join()

    assert meter.live() == 4000


def test_a_tensor_outlives_the_meter_that_counted_it():
    meter = ProbeMeter()
    meter.start(0)
    a = torch.ones(FLOATS)
    meter.stop()

    b = torch.empty(FLOATS)
    assert a.sum().item() == FLOATS
    del a

    # b was made after the stop: it is not counted.
    assert meter.live() == 0
    del b


def test_a_meter_started_again_counts_what_outlived_it():
    meter = ProbeMeter()
    meter.start(0)
    a = torch.empty(FLOATS)
    meter.stop()
    meter.start(4000)

    del a

    assert meter.live() == 0
    meter.stop()


def test_all_allocations_of_a_backward_on_the_cpu_are_counted(meter):
    w = torch.ones(FLOATS, requires_grad=True)
    meter.start(0)

    # y = w * w saves no copy; its gradient makes 4,000 bytes each for y, w * grad and w.grad.
    (w * w).sum().backward()

    assert meter.live() == 4000
    w.grad = None
    assert meter.live() == 0


def test_the_jobs_own_torch_profiler_works_beside_it(meter):
    meter.start(0)

    with torch.profiler.profile(profile_memory=True) as profiler:
        a = torch.empty(FLOATS)

    assert (meter.live(), meter.exact) == (4000, True)
    sizes = [e.nbytes() for e in profiler.profiler.kineto_results.events() if e.nbytes()]
    assert 4000 in sizes
    del a


def test_the_fallback_counts_storages_and_says_that_it_is_not_exact():
    meter = StorageMeter("no compiler")
    meter.start(100)
    a = torch.empty(FLOATS)
    b = a.view(10, 100) + 1

    assert (meter.live(), meter.peak(), meter.exact) == (8100, 8100, False)
    assert torch._C._len_torch_dispatch_stack() == 1
    del a
    gc.collect()
    assert (meter.live(), meter.peak()) == (4100, 8100)
    meter.stop()
    assert torch._C._len_torch_dispatch_stack() == 0
    del b


def test_the_fallback_agrees_with_the_exact_meter_on_what_lives_after_a_step(meter):
    meter.start(0)
    fallback = StorageMeter("for comparison")
    fallback.start(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()

    # 64*64 + 64 + 64*8 + 8 = 4,680 parameters, three times: weights, gradients, momentum.
    assert (fallback.live(), meter.live()) == (3 * 4 * 4680, 3 * 4 * 4680)
    assert fallback.peak() <= meter.peak()
    fallback.stop()


def test_without_a_compiler_the_fallback_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    probe.load.cache_clear()

    found = open_meter("cpu")

    probe.load.cache_clear()
    assert (found.name, found.exact) == ("storage", False)
    assert "no-such-compiler" in found.why


def test_a_compiler_that_fails_is_quoted_in_one_sentence(monkeypatch, tmp_path):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'probe.cc:1: error: out of cheese' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))

    with pytest.raises(RepriseError, match=r"cannot build the memory probe .*out of cheese"):
        probe.build(tmp_path)

    assert list(tmp_path.glob("*.so")) == []


def test_a_library_that_others_can_write_to_is_built_again(tmp_path):
    first = probe.build(tmp_path)
    first.write_bytes(b"not a library")
    first.chmod(0o777)

    again = probe.build(tmp_path)

    assert again == first
    assert again.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.long
def test_building_ahead_of_time_prints_where_it_is(python, tmp_path):
    done = python("-m", "reprise.torch.meter.probe", "build", XDG_CACHE_HOME=str(tmp_path))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().startswith(str(tmp_path))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_cuda_device_is_refused_in_one_sentence():
    with pytest.raises(RepriseError, match="cuda:0: this torch sees no CUDA device"):
        CudaMeter(torch.device("cuda:0"))


def test_a_device_that_cannot_be_measured_is_refused():
    with pytest.raises(RepriseError, match="device meta: its memory cannot be measured"):
        open_meter("meta")


EVENTS = """
import json, sys, torch
from torch import nn
from torch.profiler import profile
from reprise.agent.agent import Agent
from reprise.torch.internals import guard  # noqa: E402
from reprise.torch.meter.meter import ProbeMeter

torch.set_num_threads(2)
agent = Agent.start(sink="file:" + sys.argv[1])
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(),
    nn.Dropout(), nn.Linear(8 * 30 * 30, 10),
)
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
meter = ProbeMeter()
meter.start(1000)

def step():
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()

step()
with profile(profile_memory=True) as profiler:
    before = meter.live()
    meter.reset_peak()
    meter.events_begin(agent)
    step()
    peak, after = meter.peak(), meter.live()
    meter.events_end()
agent.stop()
events = profiler.profiler.kineto_results.events()
print(json.dumps({
    "profiler": [e.nbytes() for e in events if e.name() == "[memory]"],
    "before": before, "peak": peak, "after": after,
}))
"""


def test_the_probe_sees_what_torch_profiler_sees_event_by_event(
    python, tmp_path, agent_library, read_sink
):
    done = python("-c", EVENTS, str(tmp_path / "sink"), REPRISE_AGENT=str(agent_library))
    assert done.returncode == 0, done.stderr

    seen = json.loads(done.stdout.splitlines()[-1])
    baseline, *events = read_sink(tmp_path / "sink").allocs
    assert len(events) > 100
    assert [size for _, size, _ in events] == seen["profiler"]

    # The records alone give the same baseline, peak and end as the counters.
    live = peak = baseline[1]
    for _, size, _ in events:
        live += size
        peak = max(peak, live)
    assert (baseline[1], peak, live) == (seen["before"], seen["peak"], seen["after"])


def test_a_forked_child_works_and_counts_nothing(meter):
    meter.start(0)
    a = torch.ones(FLOATS)

    child = os.fork()
    if child == 0:
        before = meter.live()
        del a
        b = torch.ones(FLOATS)
        os._exit(0 if b.sum().item() == FLOATS and meter.live() == before else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert meter.live() == 4000
    assert a.sum().item() == FLOATS


FORK_STORM = """
import os, threading, torch
from reprise.torch.internals import guard  # noqa: E402
from reprise.torch.meter.meter import ProbeMeter

meter = ProbeMeter()
meter.start(0)
stop = threading.Event()

def churn():
    while not stop.is_set():
        torch.empty(100)

threads = [threading.Thread(target=churn) for _ in range(3)]
for t in threads: t.start()
for _ in range(60):
    child = os.fork()
    if child == 0:
        torch.empty(100)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for t in threads: t.join()
print("live", meter.live())
"""


def test_forks_while_other_threads_allocate_never_hang(python):
    try:
        done = python("-c", FORK_STORM)
    except subprocess.TimeoutExpired:
        pytest.fail("a forked child hung")

    assert done.stdout.strip() == "live 0", done.stderr


def test_the_fallback_passes_over_tensors_without_a_storage() -> None:
    faults: list[Exception] = []

    def told(error: Exception) -> bool:
        faults.append(error)
        return True

    guard.listen(told)
    meter = StorageMeter("no compiler")
    meter.start(0)
    try:
        torch.sparse.mm(torch.eye(4).to_sparse(), torch.ones(4, 2))
    finally:
        meter.stop()
        guard.no_longer(told)

    assert not faults
    assert meter.peak() > 0
