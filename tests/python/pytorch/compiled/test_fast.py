# SPDX-License-Identifier: Apache-2.0
"""The native engine of the tape does exactly what the Python engine does."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import referee
import torch
from arming import arm
from jobs import (
    CapturedGraph,
    Job,
    Tape,
    captured,
    compile_plan,
    different,
    plain_step,
    planned_step,
    start_meter,
    sum_of,
)
from local_agent import LocalAgent
from loops import deep, train
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import reprise
from reprise.base.errors import RepriseError
from reprise.torch.compiled import fast
from reprise.torch.internals import watch
from reprise.torch.internals.native import Native
from reprise.torch.tape import tape, tape_run

GATE = torch._C._parse_dispatch_key("Fake")


class Net(nn.Module):
    """Linear layers with code of the test in the middle. The calls save inputs, no outputs."""

    def __init__(self, middle: Any = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x).sin()
            if number == 2 and self.middle is not None:
                x = self.middle(x)
        return x


def job_of(net: nn.Module) -> Job:
    return Job(net, (torch.randn(4, 8),), sum_of, torch.optim.SGD(net.parameters(), lr=0.1))


def graph_of(job: Job) -> CapturedGraph:
    plain_step(job, 0)
    return captured(job, start_meter())


def tape_of(graph: CapturedGraph, share: float = 1.0, seed: int = 0) -> Tape:
    made = Tape(compile_plan(graph, referee.random_plan(graph.message(), seed, share, 0.3)))
    assert (made._compiled is not None) == (made.program.replays > 0)
    return made


def nothing_left() -> bool:
    """Returns whether this thread has no modes, hooks or gate left."""
    torch.autograd.graph.disable_saved_tensors_hooks("refused while some are set").__enter__()
    torch._C._autograd._saved_tensors_hooks_enable()
    included = torch._C._dispatch_tls_is_dispatch_key_included
    stack = torch._C._len_torch_dispatch_stack()
    return not (included(GATE) or included(torch._C.DispatchKey.Python) or stack)


def check(job: Job, graph: CapturedGraph, made: Tape) -> Any:
    expected = plain_step(job, 1, step=False)
    found, counts, _ = planned_step(job, graph, [], 1, tape=made, step=False)
    assert different(expected, found) == []
    assert nothing_left()
    return counts


def test_no_call_reaches_python_while_the_step_follows_its_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_of(Net())
    graph = graph_of(job)
    made = tape_of(graph, share=0.4)
    seen: list[Any] = []
    look = Tape.op
    monkeypatch.setattr(
        Tape, "op", lambda self, op, types: (seen.append(op.func), look(self, op, types))[1]
    )

    counts = check(job, graph, made)

    assert any(not row.plain for row in made.program.rows)
    assert seen == []
    assert (counts.dropped, counts.replayed) == (sum(made.program.slots), made.program.replays)
    assert counts.mismatches == counts.on_demand == 0


def in_inference_mode(out: Tensor) -> Tensor:
    with torch.inference_mode():
        seen = out.detach().clone().mul_(2.0).sum()
    return out.square().sum() + float(seen > 0)


LOSSES: dict[str, Any] = {
    "ordinary": lambda out: out.square().sum(),
    "a transform": lambda out: torch.func.vmap(lambda row: row.square().sum())(out).sum(),
    "a gradient inside": lambda out: (
        torch.func.grad(lambda y: y.sin().sum())(out.detach()).sum() + out.square().sum()
    ),
    "compiled": lambda out: torch.compile(lambda y: y.square().sum(), backend="aot_eager")(out),
    "in inference mode": in_inference_mode,
    "checkpointed": lambda out: torch.utils.checkpoint.checkpoint(
        lambda y: y.sin().sum(), out, use_reentrant=False
    ),
    "under a mode": lambda out: Counting().__enter__() and leave(out.square().sum()),
}


def leave(loss: Tensor) -> Tensor:
    """Leaves the mode that the loss is under."""
    torch.utils._python_dispatch._get_current_dispatch_mode_stack()[-1].__exit__(None, None, None)
    return loss


@pytest.mark.parametrize(
    "loss", [pytest.param(k, marks=pytest.mark.train) if k == "compiled" else k for k in LOSSES]
)
def test_a_loss_of_any_kind_is_watched_without_a_mode(loss: str) -> None:
    shift = torch.randn(8)  # which replays read, and no backward
    job = job_of(Net(lambda x: x + shift))
    made = tape_of(graph_of(job))
    job.loss = LOSSES[loss]
    expected = plain_step(job, 1, step=False)
    job.begin(1)
    made.begin()
    with made.region():
        out = job.model(*job.inputs)
    assert torch._C._dispatch_tls_is_dispatch_key_included(GATE)
    assert torch._C._len_torch_dispatch_stack() == 0

    value = job.loss(out)
    shift.add_(1.0)
    value.backward()

    assert different(expected, job.state()) == []
    assert made.run.counts.replayed > 0
    assert made.run.counts.on_demand == 0
    assert nothing_left()


def test_a_watch_is_ended_from_another_thread() -> None:
    job = job_of(Net())
    made = tape_of(graph_of(job))
    made.begin()
    with made.region():
        out = job.model(*job.inputs)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(watch.close_watches).result()
    torch.zeros(2).add_(1.0)  # nobody is told
    watch.close_watches()

    assert nothing_left()
    del out


def test_saved_tensors_far_from_discarded_ones_go_through_no_hook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_of(Net())
    graph = graph_of(job)
    message = graph.message()
    programs = (
        compile_plan(graph, referee.random_plan(message, seed, 0.15, 0.3)) for seed in range(50)
    )
    program = next(p for p in programs if 0 < sum(p.slots) <= 2)
    made = Tape(program)
    calls: list[int] = []
    advance = tape.Run.advance
    monkeypatch.setattr(
        tape.Run,
        "advance",
        lambda run, slot: (calls.append(slot), advance(run, slot))[1],
    )

    counts = check(job, graph, made)

    # Two calls save what is in one window, at most four tensors.
    assert counts.dropped == sum(program.slots)
    assert sum(program.slots) <= made.hooked <= 8 < len(graph.step.slots)
    assert len(calls) <= made.hooked
    assert counts.mismatches == counts.on_demand == 0


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


class Silent(TorchDispatchMode):
    """A mode that observes and changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Doubled(Tensor):
    """A tensor subclass that handles its own calls."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*(a.inner if isinstance(a, Doubled) else a for a in args), **(kwargs or {}))
        return Doubled(out) if isinstance(out, Tensor) else out


class Through(torch.autograd.Function):
    """Computes on a tensor subclass inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return (Doubled(x.detach()) * 2.0).inner + 0.0  # type: ignore[attr-defined,no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2.0


def with_a_mode(x: Tensor) -> Tensor:
    with Counting() as mode:
        x = x.tanh().exp()
    assert mode.seen >= 2  # and detach, of what is saved without hooks
    return x.sin()


def with_saved_outputs(x: Tensor) -> Tensor:
    return x.reshape(2, 16).softmax(1).tanh().reshape(4, 8).sigmoid().permute(1, 0).reshape(4, 8)


def with_hooks_of_its_own(x: Tensor) -> Tensor:
    packed = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        x = x.tanh().exp()
    assert len(packed) == 2
    return x.sin()


def with_a_gradient_inside(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad((y.sin() * y).sum(), y)
    return x * slope


def without_any_mode(x: Tensor) -> Tensor:
    guard = torch._C._DisableTorchDispatch()
    try:
        scale = x.detach().abs().max()
    finally:
        del guard
    return x / (scale + 1)


def with_a_parameter_made_inside(x: Tensor) -> Tensor:
    # torch takes all modes off the stack for it, and puts them back.
    scale = nn.Parameter(torch.full((8,), 0.5), requires_grad=False)
    return (x * scale).tanh()


@pytest.mark.parametrize(
    "middle",
    [
        with_saved_outputs,
        with_a_parameter_made_inside,
        with_a_mode,
        with_hooks_of_its_own,
        with_a_gradient_inside,
        without_any_mode,
        Through.apply,
    ],
)
def test_forwards_of_every_kind_run_in_the_native_engine_as_in_python(
    middle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(Net(middle))
    graph = graph_of(job)

    for seed in range(4):
        made = tape_of(graph, share=(1.0, 0.5, 0.3, 0.2)[seed], seed=seed)
        counts = check(job, graph, made)
        with monkeypatch.context() as without:
            without.setenv("REPRISE_FAST", "0")
            alone = check(job, graph, Tape(made.program))
        assert (alone.mismatches, alone.dropped) == (counts.mismatches, counts.dropped)
        # Behind a mismatch the order of unpacks tells when to make things on demand, and more of
        # them are seen in Python.
        assert counts.mismatches or alone == counts


class OutOfStep(nn.Module):
    """Writes inputs that records hold, and takes paths that the capture did not take."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.way: Any = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = (self.first(x).sin() * 0.5).add_(1.0).exp()
        if self.way is not None:
            hidden = self.way(hidden)
        return self.last(hidden.cos().sigmoid_()).tanh()  # type: ignore[no-any-return]


def once(loss: Tensor) -> None:
    loss.backward()


def twice(loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


def in_two_orders(loss: Tensor) -> None:
    nodes: list[Any] = [loss.grad_fn]
    for node in nodes:
        nodes += [next for next, _ in node.next_functions if next is not None]

    def look(_: Any) -> None:
        for node in reversed(nodes):  # the first calls of the forward
            for name in dir(node):
                if name.startswith("_saved_"):
                    getattr(node, name)

    nodes[1].register_prehook(look)
    loss.backward()


WAYS: dict[str, tuple[Any, Any, int]] = {
    "another op": (lambda h: h.neg().neg(), once, 1),
    "another write": (lambda h: h.mul(1.0).mul_(2.0), once, 1),
    "under a mode": (with_a_mode, once, 1),
    "a graph that is kept": (None, twice, 1),
    "an unpack out of order": (None, in_two_orders, 1),
    "as planned": (None, once, 0),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_step_that_leaves_its_plan_ends_in_the_engine_that_it_began_in(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, backward, mismatches = WAYS[name]
    net = OutOfStep()
    job = job_of(net)
    graph = graph_of(job)
    program = compile_plan(graph, referee.random_plan(graph.message(), 0, 1.0, 0.3))
    net.way = way

    def gradients(around: Any) -> dict[str, Tensor]:
        job.begin(1)
        with around():
            out = net(*job.inputs)
        backward(job.loss(out))
        return job.state()

    expected = gradients(nullcontext)
    found = {}
    for engine in ("native", "Python"):
        with monkeypatch.context() as only:
            if engine == "Python":
                only.setenv("REPRISE_FAST", "0")
            made = Tape(program)
            run = made.begin()
            assert (run.native is not None) == (engine == "native")
            if engine == "native":
                only.setattr(tape_run, "PythonEngine", None)  # cannot be made
            assert different(expected, gradients(made.region)) == []
            assert made.run is run
            assert (run.native is not None) == (engine == "native")
            found[engine] = run.counts
    assert found["native"].mismatches == found["Python"].mismatches == mismatches
    assert found["native"].dropped == found["Python"].dropped > 0
    # Behind a mismatch hooks are off in one engine and on in the other.
    assert mismatches == 0 or found["native"].on_demand + found["native"].replayed > 0
    assert mismatches or found["native"] == found["Python"]


def test_an_op_that_a_mode_has_seen_is_recorded_by_the_native_engine() -> None:
    def seen(x: Tensor) -> Tensor:
        with Silent():
            y = torch.cat([x.sin(), x.cos()], dim=1).mul_(2.0)
            return y[:, :8] + torch.add(y[:, 8:], x, alpha=0.5)

    net = Net(seen)
    job = job_of(net)
    graph = graph_of(job)
    for seed in range(3):
        made = tape_of(graph, seed=seed)
        expected = plain_step(job, 1, step=False)
        run = made.begin()
        job.begin(1)
        with made.region():
            out = net(*job.inputs)
        assert run.native is not None
        job.loss(out).backward()

        assert different(expected, job.state()) == []
        assert (run.counts.mismatches, run.counts.on_demand) == (0, 0)
        assert run.counts.replayed == made.program.replays
        assert nothing_left()


def test_a_call_that_the_native_engine_cannot_record_is_kept_and_the_step_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Strange:
        """An op whose arguments cannot be read the first time."""

        def __init__(self, op: Any) -> None:
            self.op, self.asked = op, 0

        @property
        def args(self) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise KeyError("args")
            return self.op.args

        def __getattr__(self, name: str) -> Any:
            return getattr(self.op, name)

    job = job_of(Net(with_a_mode))
    graph = graph_of(job)
    made = tape_of(graph)
    special = tape.Run.special
    seen: list[Any] = []
    monkeypatch.setattr(
        tape.Run,
        "special",
        lambda run, row, op: (seen.append(op), special(run, row, Strange(op)))[1],
    )

    counts = check(job, graph, made)

    assert len(seen) == 1  # from then on everything is kept
    assert counts.mismatches == 1
    assert counts.dropped > 0
    assert "KeyError: 'args'" in capsys.readouterr().err


def test_a_higher_order_operator_that_was_not_captured_finds_its_kernel() -> None:
    from torch._higher_order_ops.out_dtype import out_dtype

    def product(x: Tensor) -> Tensor:
        ones = torch.ones(4, 4, dtype=torch.int8)
        return x + out_dtype(torch.ops.aten.mm.default, torch.int32, ones, ones).sum()

    net = Net()
    job = job_of(net)
    graph = graph_of(job)
    made = tape_of(graph)
    net.middle = product

    counts = check(job, graph, made)

    assert counts.mismatches == 1


def test_a_forward_that_raises_leaves_no_modes_or_hooks_on_the_thread() -> None:
    def fails(x: Tensor) -> Tensor:
        return torch.mm(x, x.new_zeros(3, 3))

    net = Net()
    job = job_of(net)
    graph = graph_of(job)
    made = tape_of(graph)
    net.middle = fails

    made.begin()
    with pytest.raises(RuntimeError), made.region():
        net(*job.inputs)
    assert nothing_left()

    net.middle = None
    assert check(job, graph, made).mismatches == 0


def test_a_step_under_a_foreign_mode_runs_in_python_as_planned() -> None:
    job = job_of(Net())
    graph = graph_of(job)
    made = tape_of(graph, share=0.4)
    expected = plain_step(job, 1, step=False)

    with Counting() as mode:
        found, counts, _ = planned_step(job, graph, [], 1, tape=made, step=False)

    assert different(expected, found) == []
    assert mode.seen > len(made.program.rows)
    assert (counts.mismatches, counts.on_demand) == (0, 0)
    assert check(job, graph, made).replayed == counts.replayed


def test_with_reprise_fast_0_everything_runs_in_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_of(Net())
    graph = graph_of(job)
    monkeypatch.setenv("REPRISE_FAST", "0")
    made = Tape(compile_plan(graph, referee.random_plan(graph.message(), 0, 1.0, 0.3)))

    counts = check(job, graph, made)

    assert made._compiled is None
    assert (counts.mismatches, counts.dropped > 0) == (0, True)


def test_a_part_that_cannot_be_built_is_replaced_by_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(fast, "_module", None)

    assert fast.load(tape.unpack) is None
    with pytest.raises(RepriseError, match="no-such-compiler"):
        fast.FAST.build(tmp_path)


def test_jobs_that_start_together_share_one_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler, calls, cache = tmp_path / "compiler", tmp_path / "calls", tmp_path / "cache"
    cache.mkdir(mode=0o700)
    compiler.write_text(
        f"#!/bin/sh\necho call >> {calls}\nsleep 0.3\n"
        'while [ "$1" != -o ]; do shift; done\necho library > "$2"\n'
    )
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    left = cache / ".fast-killed.so"
    left.touch()

    with ThreadPoolExecutor(3) as jobs:
        built = list(jobs.map(fast.FAST.build, [cache] * 3))

    assert len(set(built)) == 1
    assert calls.read_text() == "call\n"
    assert not left.exists()
    assert {path.name for path in cache.iterdir()} == {built[0].name, "fast.lock"}


def test_every_torch_version_has_its_own_build(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Native._fingerprint(fast.FAST)

    monkeypatch.setattr(torch, "__version__", "3.0.0")

    assert Native._fingerprint(fast.FAST) != here


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Gives the test an empty cache folder, in a process that has loaded no native engine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in {"_module": None, "_builder": None, "_failed": False, "_why": ""}.items():
        monkeypatch.setattr(fast, name, value)
    return tmp_path


@pytest.mark.usefixtures("removed")
def test_a_cache_folder_that_others_can_write_to_is_named_in_log_and_report(
    unbuilt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (unbuilt / "reprise" / "fast").mkdir(parents=True)
    (unbuilt / "reprise" / "fast").chmod(0o777)
    fast.prepare()  # as reprise.auto does
    model = deep()
    arm(model, LocalAgent(), verify_every=0)

    train(model, 6)

    why = reprise.report(model).in_python
    assert "or other users can write there" in why
    assert capsys.readouterr().err.count(f"{why}. Plans run in Python, with more overhead") == 1


def test_a_compiler_that_fails_beside_the_job_is_logged_with_its_error(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = unbuilt / "python"
    builder.write_text("#!/bin/sh\necho first >&2; echo no room left >&2; exit 1\n")
    builder.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(builder))

    fast.prepare()
    assert fast._builder is not None
    fast._builder.wait()
    assert not fast.being_built()
    assert not fast.being_built()

    assert fast.why_python() == "the native engine is not built: no room left"
    assert capsys.readouterr().err.count("the native engine is not built: no room left") == 1


def test_an_op_that_the_native_engine_does_not_know_is_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_of(Net())
    graph = graph_of(job)
    program = compile_plan(graph, referee.random_plan(graph.message(), 0, 1.0, 0.3))
    monkeypatch.setattr(fast, "_why", "")
    monkeypatch.setattr(fast, "name_of", lambda func: ("aten::unheard_of", ""))

    made = Tape(program)

    assert made._compiled is None
    assert "the native engine does not know an op of this step" in fast.why_python()
    assert capsys.readouterr().err.count("Plans run in Python, with more overhead") == 1


@pytest.mark.usefixtures("removed")
def test_an_interpreter_without_a_path_costs_the_native_engine_but_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = tmp_path / "python"
    denied.touch(mode=0o600)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("_module", "_builder"):
        monkeypatch.setattr(fast, name, None)
    monkeypatch.setattr(fast, "_failed", False)
    for executable in (str(denied), None):
        monkeypatch.setattr(sys, "executable", executable)
        monkeypatch.setattr(fast, "_failed", False)

        fast.prepare()
        fast.prepare()

        said = capsys.readouterr().err
        assert said.count("the native engine is not built") == 1
        assert repr(executable) in said
    model = deep()
    session = arm(model, LocalAgent(), verify_every=1)
    train(model, 6)
    assert fast.library() is None
    assert session.job.measured.planned_steps == 3
    assert session.job.record.verdict().checks == 3
