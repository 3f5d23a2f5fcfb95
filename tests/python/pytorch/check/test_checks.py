# SPDX-License-Identifier: Apache-2.0
"""Checks of planned steps: what they compare, when a plan is at fault, and when it is not."""

from __future__ import annotations

import copy
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from arming import arm
from local_agent import LocalAgent
from loops import deep
from nets import WIDTH
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import reprise
from reprise.torch.check import quarantine
from reprise.torch.compiled import fast
from reprise.torch.compiled.digest import digest
from reprise.torch.internals import ops
from reprise.torch.policy.state import Stage
from reprise.torch.session import check_schedule
from reprise.torch.tape import replay

pytestmark = pytest.mark.usefixtures("removed")

STEPS = 7  # two plain, a captured one, a checked one, and what follows


def train(
    model: nn.Module, steps: int = STEPS, after: Callable[[], Any] = lambda: None, **options: Any
) -> list[Tensor]:
    """Trains and returns the gradients of the last step. `after` runs between backward and
    optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad(**options)
        model(torch.randn(6, WIDTH)).square().mean().backward()
        after()
        optimizer.step()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def made() -> nn.Module:
    torch.manual_seed(0)
    return deep()


# ---- Digests ---------------------------------------------------------------------------


@pytest.fixture(params=["compiled", "hashlib"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the test with digests of the native engine and of hashlib."""
    monkeypatch.setenv("REPRISE_FAST", str(int(request.param == "compiled")))


@pytest.mark.usefixtures("either")
def test_a_digest_changes_with_every_bit_and_nothing_else() -> None:
    # Longer than one stripe of the hash, no multiple of it, longer than one chunk of hashlib.
    for count in (1, 7, 1000, 300_001):
        tensor = torch.randn(count)
        known = digest(tensor)
        assert digest(tensor.clone()) == known
        for at in {0, count // 2, count - 1}:
            other = tensor.clone()
            other.view(torch.int32)[at] ^= 1
            assert digest(other) != known
    first, second = torch.arange(64), torch.arange(64).flip(0)
    assert digest(first) != digest(second)  # the order counts
    assert digest(torch.zeros(2)) != digest(torch.zeros(3))
    assert digest(torch.zeros(2)) != digest(-torch.zeros(2))
    assert digest(torch.empty(0)) == digest(torch.empty(0))


@pytest.mark.usefixtures("either")
def test_a_digest_covers_elements_and_not_the_gaps_between_them() -> None:
    whole = torch.randn(5, 700, 12)
    part = whole[:, 100:600, 3:7]
    known = digest(part)
    whole[:, :100] = whole[:, 600:] = 0
    whole[:, :, :3] = whole[:, :, 7:] = 0
    assert digest(part) == known
    part[4, 499, 3] += 1
    assert digest(part) != known
    assert digest(torch.ones(1).expand(4)) == digest(torch.ones(1).expand(4))


@pytest.mark.usefixtures("either")
def test_equal_gradients_have_equal_digests_in_any_memory_layout() -> None:
    parameter = torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last)
    gradient = torch.randn(3, 4, 5, 6)
    same = gradient.to(memory_format=torch.channels_last)

    assert digest(gradient, like=parameter) == digest(same, like=parameter)
    assert digest(gradient.expand_as(gradient), like=parameter) == digest(same, like=parameter)
    rows = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1]]), torch.randn(3, 2), (4, 2))
    assert digest(rows, like=torch.randn(4, 2)) == digest(rows.coalesce())


# ---- What is compared --------------------------------------------------------------------


@pytest.mark.usefixtures("half")
def test_a_check_ignores_what_happens_to_gradients_later() -> None:
    """Gradients may be clipped, unscaled or dropped: values are compared in any case."""
    model, agent = made(), LocalAgent()
    session = arm(model, agent, verify_every=1)

    train(model, after=lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01))

    assert [c["step"] for c in agent.checks] == [4, 5, 6, 7]
    assert all(c["checked"] > 3 and c["differing"] == 0 for c in agent.checks)
    report = reprise.report(model)
    assert "values made again bit for bit equal in 4 checks" in str(report)
    assert (report.gradient_checks, report.verify_peak_bytes) == (0, 0)
    assert session.job.record.verdict().values_checked == sum(c["checked"] for c in agent.checks)


def test_a_hook_of_the_program_on_the_models_output_is_part_of_the_step_that_is_compared() -> None:
    model = made()
    session = arm(model, verify="gradients", verify_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        y = model(torch.randn(6, WIDTH))
        y.register_hook(lambda grad: grad * 2)
        y.square().mean().backward()
        optimizer.step()

    assert session.job.stage is Stage.PLANNED, session.job.why
    assert session.job.record.verdict().checks


def test_gradients_that_are_clipped_or_unscaled_are_compared_as_the_backward_left_them() -> None:
    scaled, clipped = made(), made()
    agents = [LocalAgent(), LocalAgent()]
    arm(scaled, agents[0], verify="gradients", verify_every=1)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(scaled.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(scaled(torch.randn(6, WIDTH)).square().mean()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    reprise.remove(scaled)
    arm(clipped, agents[1], verify="gradients", verify_every=1)
    train(clipped, after=lambda: torch.nn.utils.clip_grad_norm_(clipped.parameters(), 0.01))

    for agent in agents:
        assert [c["checked"] for c in agent.checks] == [4] * 4  # parameters
        assert all(c["differing"] == 0 for c in agent.checks)
    assert reprise.report(clipped).gradient_checks == 4
    assert reprise.report(clipped).verify_peak_bytes > 0


def test_gradients_are_compared_even_if_they_accumulate_and_change_in_between() -> None:
    model, agent = made(), LocalAgent()
    arm(model, agent, verify="gradients", verify_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.randn(6, WIDTH)).square().mean().backward()
        optimizer.step()
    accumulated = len(agent.checks)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.randn(6, WIDTH)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()

    assert accumulated == 4
    assert all(c["checked"] == 4 and c["differing"] == 0 for c in agent.checks[:4])
    later = agent.checks[4:]
    assert later
    assert all(c["checked"] > 3 and c["differing"] == 0 and c["flags"] & 8 for c in later)


@pytest.mark.parametrize("verify", ["values", "gradients"])
def test_the_steps_of_an_optimizer_that_runs_within_the_backward_are_checked(verify: str) -> None:
    model, agent = made(), LocalAgent()
    arm(model, agent, verify=verify, verify_every=1)
    optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(9):
        model(torch.randn(6, WIDTH)).square().mean().backward()

    planned = [s for s in agent.steps if s["flags"] & 1]
    assert planned
    assert len(agent.checks) >= len(planned) - 1  # the last one's backward is judged by the next
    assert all(c["checked"] > 0 and c["differing"] == 0 for c in agent.checks)


def test_a_backward_inside_the_optimizer_step_is_checked() -> None:
    model, agent = made(), LocalAgent()
    arm(model, agent, verify_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(6, WIDTH)).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)

    assert len(agent.checks) == 4
    assert all(c["checked"] > 3 and c["differing"] == 0 for c in agent.checks)
    report = reprise.report(model)
    assert (report.values_equal, report.gradients_equal) == (True, False)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


def test_a_batch_norm_that_runs_twice_in_a_step_is_compared_and_restored() -> None:
    plain, model, agent = Norm(), Norm(), LocalAgent()
    model.load_state_dict(plain.state_dict())
    for one in (plain, model):
        if one is model:
            arm(model, agent, verify="gradients", verify_every=1)
        torch.manual_seed(5)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.05)
        for _ in range(STEPS):
            optimizer.zero_grad()
            left, right = one(torch.randn(6, WIDTH)), one(torch.randn(6, WIDTH))
            (left * right).mean().backward()
            optimizer.step()

    assert [(c["checked"], c["differing"]) for c in agent.checks] == [(4, 0)] * 4
    for (name, mine), theirs in zip(
        model.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs), name


def test_buffers_that_a_step_writes_are_compared_and_counted() -> None:
    values, gradients = Norm(), Norm()
    arm(values, LocalAgent(), verify_every=1)
    train(values)
    arm(gradients, LocalAgent(), verify="gradients", verify_every=1)
    train(gradients)

    for model in (values, gradients):
        report = reprise.report(model)
        assert (report.checks, report.failed_checks) == (4, 0)
        assert report.buffers_checked == 4 * len(list(model.buffers()))


class Counts(nn.Module):
    """Calls an operator that writes a buffer although its schema does not say so."""

    calls: Tensor

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.linear, self.op = nn.Linear(WIDTH, WIDTH), op
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return (x * self.op(x.detach(), self.calls)).sin().cos()  # type: ignore[no-any-return]


def _by_a_kernel(calls: Tensor) -> None:
    calls.add_(1)


def _unseen(calls: Tensor) -> None:
    calls.numpy()[...] += 1


# The native engine refuses to replay what reads a tensor with another version.
@pytest.fixture(params=[(_by_a_kernel, "0"), (_unseen, "0"), (_unseen, "1")])
def counts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Registers such an operator as one of PyTorch's own."""
    library = torch.library.Library("reprise_counts", "FRAGMENT")
    write, fast = request.param
    monkeypatch.setenv("REPRISE_FAST", fast)
    library.define("signs(Tensor x, Tensor calls) -> Tensor")

    def signs(x: Tensor, calls: Tensor) -> Tensor:
        write(calls)
        return x.sign()

    library.impl("signs", signs, "CPU")
    monkeypatch.setattr(ops, "_NAMESPACES", ops._NAMESPACES | {"reprise_counts"})
    yield torch.ops.reprise_counts.signs.default
    library._destroy()


@pytest.mark.usefixtures("steady")
def test_a_buffer_that_a_replay_has_written_twice_is_found(
    counts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model, agent = Counts(counts), LocalAgent(again=1.0)
    session = arm(model, agent, verify_every=1)

    train(model, 12)

    said = capsys.readouterr().err
    assert "1 buffer of the model was written twice when ops ran again (calls)" in said
    assert "reprise_counts.signs.default writes it without declaring it" in said
    assert quarantine.holds(agent.make(agent.graphs[0], 1))
    assert session.job.stage is Stage.PLANNED  # by another plan
    assert [c["differing"] > 0 for c in agent.checks[:2]] == [True, False]
    assert model.calls == 13  # once too often, in the step that showed it
    report = reprise.report(model)
    assert (report.failed_checks, report.validated) == (1, False)
    assert report.buffers_checked > 2


def test_a_program_may_write_a_buffer_twice_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Norm(), Norm()

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.first, x, use_reentrant=False)
            return self.second(x).sin().cos()  # type: ignore[no-any-return]

    plain, model, agent = Checkpointed(), Checkpointed(), LocalAgent()
    model.load_state_dict(plain.state_dict())
    train(plain, 9)
    session = arm(model, agent, verify_every=1)

    train(model, 9)

    assert session.job.stage is Stage.PLANNED
    assert agent.checks
    assert all(c["differing"] == 0 for c in agent.checks)
    assert "written" not in capsys.readouterr().err
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, plain.get_buffer(name)), name


def test_a_copy_without_its_own_gradients_is_no_internal_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = made()
    train(model, 1)
    teacher = copy.deepcopy(model).requires_grad_(False)
    head = nn.Linear(WIDTH, 1)
    both = nn.Sequential(teacher, head)
    agent = LocalAgent()
    arm(both, agent, verify="gradients")
    arm(teacher, LocalAgent(), verify="gradients")

    train(both)

    assert "could not be verified" not in capsys.readouterr().err
    assert all(c["differing"] == 0 for c in agent.checks)


@pytest.mark.usefixtures("half")
def test_a_check_that_a_failing_step_has_skipped_is_made_in_the_next_one() -> None:
    model, agent = made(), LocalAgent()
    arm(model, agent)
    train(model, 3)

    failing = model[-1].register_forward_pre_hook(lambda *_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError):
        train(model, 1)
    unchecked = reprise.report(model).unchecked
    failing.remove()
    train(model, 2)

    assert unchecked == "the step to be checked did not finish"
    assert len(agent.checks) == 1
    assert agent.checks[0]["checked"] > 3


def test_what_was_not_checked_says_so_and_why() -> None:
    model = made()
    arm(model, verify_every=0)

    train(model, 6)

    report = reprise.report(model)
    assert report.unchecked == "verify_every is 0"
    assert "not checked yet: verify_every is 0" in str(report)
    assert not report.validated


# ---- What it takes -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heap_counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Counts what a process holds, below torch."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or platform.libc_ver()[0] != "glibc":
        pytest.skip("needs a C compiler and glibc")
    target = tmp_path_factory.mktemp("heap") / "heap_counter.so"
    source = Path(__file__).parents[1].joinpath("heap_counter.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", target, source, "-ldl"], check=True)
    return target


@pytest.mark.long
@pytest.mark.parametrize("verify", ["values", "gradients"])
def test_a_checked_step_takes_as_much_below_torch_as_is_documented(
    verify: str, heap_counter: Path
) -> None:
    job = Path(__file__).parents[1].joinpath("heap_job.py")
    done = subprocess.run(
        [sys.executable, job, verify],
        env={**os.environ, "LD_PRELOAD": str(heap_counter)},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)

    if not told["exact"]:
        pytest.skip("needs the exact meter")
    plain, checked = told["steps"][1], told["steps"][3]
    others = [told["steps"][at] for at in (4, 5, 7)]  # planned; the fifth is drawn
    assert told["planned"] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert told["checked"] == [4, 7]
    # Beside tensors a step makes objects of Python.
    small = 128 << 10
    assert plain > told["budget"] + 16 * small
    assert max(others) <= told["budget"] + small
    if verify == "values":
        assert checked <= told["budget"] + small
        assert told["verify_peak"] == 0
    else:
        assert told["budget"] + 16 * small < checked <= told["verify_peak"] + small


@pytest.mark.long
@pytest.mark.parametrize("verify", ["values", "gradients"])
def test_a_checked_step_of_a_compiled_job_reports_its_true_peak_and_later_steps_keep_the_budget(
    verify: str, heap_counter: Path
) -> None:
    job = Path(__file__).parents[1].joinpath("heap_job.py")
    done = subprocess.run(
        [sys.executable, job, verify, "compiled"],
        env={**os.environ, "LD_PRELOAD": str(heap_counter)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)

    if not found["exact"]:
        pytest.skip("needs the exact meter")
    # The first step compiles, the second one is measured, and the third is the first under a plan.
    small, checked = 128 << 10, [2] if verify == "values" else [2, 5]
    assert found["checks"] == len(checked)
    for step, (peak, told) in enumerate(zip(found["steps"], found["told"], strict=True)):
        if step < 2 or step in checked:
            assert found["unplanned"][step]
            assert told > found["budget"] + 4 * small
            if step not in (0, 2):  # they compile, which takes memory of Python
                assert peak <= told + small
        else:
            assert peak <= found["budget"] + small
    if verify == "values":
        assert "gradients of later compiled steps are not compared" in done.stderr


# ---- Whose fault it is ---------------------------------------------------------------------


class _Noisy(torch.autograd.Function):
    """Has random last bits in its backward, as if it added with atomics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        chance = torch.tensor(list(os.urandom(grad.numel())), dtype=torch.int32) & 1
        return (grad.contiguous().view(torch.int32) ^ chance.view_as(grad)).view(grad.dtype)


class NoisyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(_Noisy.apply(self.first(x).sin()).cos()).tanh()  # type: ignore[no-any-return]


class Forgetful(nn.Module):
    """Counts its calls where nothing can observe it, so that it is not the same function twice."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        Forgetful.calls += 1
        return self.linear(x).sin() * float(Forgetful.calls)


@pytest.mark.parametrize("net", [NoisyNet, Forgetful])
@pytest.mark.parametrize("verify", ["values", "gradients"])
def test_a_program_that_is_not_repeatable_keeps_its_plan(
    net: type[nn.Module], verify: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, agent = net(), LocalAgent()
    session = arm(model, agent, verify=verify)

    train(model)

    assert session.job.stage is Stage.PLANNED
    assert all(state == 1 for _, state, _ in agent.states)
    assert [c["step"] for c in agent.checks] == [4, 7]
    assert all(c["differing"] == 0 and c["flags"] & 8 for c in agent.checks)  # values
    said = capsys.readouterr().err
    assert said.count("different gradients each time it runs") == (verify == "gradients")
    assert "gradients bit" not in str(reprise.report(model))


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_FAST", "0")


@pytest.fixture
def steady() -> Iterator[None]:
    """Forgets what a test has found out about ops."""
    known = set(ops._unsteady)
    yield
    ops._unsteady.clear()
    ops._unsteady.update(known)


def disturbed(monkeypatch: pytest.MonkeyPatch, func: Any, change: Callable[[Tensor], None]) -> None:
    """Changes what an op makes when it runs again."""
    call = replay.call

    def disturbing(node: Any, args: Any, kwargs: Any) -> Any:
        out = call(node, args, kwargs)
        if node.func is func._op:
            change(out)
        return out

    monkeypatch.setattr(replay, "call", disturbing)


@pytest.mark.usefixtures("half")
def test_a_plan_that_recomputes_other_values_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return (x * 2).sin().cos() + self.linear(x)

    model, agent = Model(), LocalAgent()
    session = arm(model, agent)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    grads = []
    for step in range(8):
        torch.manual_seed(step)
        x = torch.randn(6, WIDTH, requires_grad=True)
        optimizer.zero_grad()
        out = model(x)
        with torch.no_grad():
            x.detach().numpy().fill(1.0)  # a write that no version counter shows
        out.square().mean().backward()
        assert x.grad is not None
        grads.append(x.grad.clone())
        optimizer.step()

    # The fourth step differs; the fifth and sixth find out that nothing but the plan explains it.
    assert session.job.stage is Stage.PLAIN
    said = capsys.readouterr().err
    assert "step 6: " in said
    assert "recomputed values differ from the original ones" in said
    assert [c["flags"] for c in agent.checks] == [4 | 8]
    assert session.plan is None
    assert quarantine.holds(agent.make(agent.graphs[0], 1))
    assert not reprise.report(model).validated


@pytest.mark.usefixtures("in_python")
def test_gradients_are_those_of_a_plain_step_while_a_difference_is_investigated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = [train(made(), steps) for steps in (4, 5, 6)]
    disturbed(monkeypatch, torch.ops.aten.tanh.default, lambda out: out.add_(1))
    suspected = partial(check_schedule._Known, suspects=set(range(50)))
    monkeypatch.setattr(check_schedule, "_Known", suspected)

    for steps, grads in zip((4, 5, 6), expected, strict=True):
        model = made()
        arm(model, LocalAgent(), verify_every=1)
        found = train(model, steps)
        assert all(torch.equal(a, b) for a, b in zip(found, grads, strict=True)), steps
        # Its bytes are other ones each time; that is no reason never to run it again.
        assert torch.ops.aten.empty_like.default not in ops._unsteady
        reprise.remove(model)


class _First(torch.autograd.Function):
    """Saves a buffer of which it reads only the first half."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
        ctx.save_for_backward(buffer)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (buffer,) = ctx.saved_tensors
        return grad * buffer[0], None


@pytest.mark.usefixtures("in_python")
def test_bytes_that_nothing_writes_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x).sin()
            buffer = torch.empty(2, *y.shape)
            buffer[0] = y.detach().cos()
            return _First.apply(y.tanh(), buffer)  # type: ignore[no-any-return]

    chance = torch.Generator().manual_seed(1)

    def garbage(out: Tensor) -> None:
        # Some of it is the same twice, by chance.
        out.copy_(torch.randint(0, 64, out.shape, generator=chance))

    disturbed(monkeypatch, torch.ops.aten.empty.memory_format, garbage)
    model, agent = Model(), LocalAgent()
    session = arm(model, agent, verify_every=1)

    train(model, 10)

    assert session.job.stage is Stage.PLANNED
    assert "differ" not in capsys.readouterr().err
    assert agent.checks
    assert all(c["differing"] == 0 and c["checked"] > 1 for c in agent.checks)
    assert session.parts.checks._known.unwritten
    assert len(agent.graphs) == 1  # a step that finds out why is larger, and no plan goes for that


def _copies(buffer: Tensor, values: Tensor) -> None:
    buffer.copy_(values)


def _puts(buffer: Tensor, values: Tensor) -> None:
    buffer[torch.arange(len(buffer)).flip(0)] = values


def _writes_and_adds(buffer: Tensor, values: Tensor) -> None:
    buffer.zero_().add_(values)


@pytest.mark.parametrize("fill", [_copies, _puts, _writes_and_adds])
@pytest.mark.usefixtures("in_python")
def test_a_storage_that_is_filled_after_it_was_made_hides_no_wrong_value(
    fill: Callable[[Tensor, Tensor], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x).sin()
            buffer = torch.empty(2, *y.shape)
            fill(buffer[0], self.wrong)  # its other half is never written
            return _First.apply(y.tanh(), buffer)  # type: ignore[no-any-return]

    chance = torch.Generator().manual_seed(1)

    def garbage(out: Tensor) -> None:
        out.copy_(torch.randint(0, 64, out.shape, generator=chance))

    disturbed(monkeypatch, torch.ops.aten.empty.memory_format, garbage)
    model, agent = Model(), LocalAgent()
    session = arm(model, agent, verify_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(5)
    for _ in range(8):
        optimizer.zero_grad()
        model.wrong = torch.randn(6, WIDTH)
        loss = model(torch.randn(6, WIDTH)).square().mean()
        model.wrong.numpy()[3, 2] += 1  # one element: a write that no version counter shows
        loss.backward()
        optimizer.step()

    assert "recomputed values differ from the original ones" in (capsys.readouterr().err)
    assert session.job.stage is Stage.PLAIN
    assert quarantine.holds(agent.make(agent.graphs[0], 1))
    assert not reprise.report(model).validated


@pytest.mark.usefixtures("in_python", "steady")
def test_a_nondeterministic_op_is_never_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = torch.Generator().manual_seed(1)

    def noise(out: Tensor) -> None:
        flips = torch.randint(0, 2, out.shape, generator=chance, dtype=torch.int32)
        out.view(torch.int32).bitwise_xor_(flips)

    disturbed(monkeypatch, torch.ops.aten.tanh.default, noise)
    model, agent = made(), LocalAgent()
    session = arm(model, agent, verify_every=1)

    train(model, 12)

    assert session.job.stage is Stage.PLANNED
    assert "aten.tanh.default gives different bits each time it runs" in capsys.readouterr().err
    assert len(agent.graphs) == 2
    kinds = {op["name"]: op["kind"] for op in agent.graphs[1]["ops"]}
    assert kinds["aten.tanh.default"] == "OP_KIND_ONCE"
    assert len(agent.checks) >= 2
    assert all(c["differing"] == 0 for c in agent.checks)
    assert not quarantine.holds(agent.make(agent.graphs[0], 1))


def test_the_digest_library_is_built() -> None:
    assert fast.library() is not None
