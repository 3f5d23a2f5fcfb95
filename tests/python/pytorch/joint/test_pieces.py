# SPDX-License-Identifier: Apache-2.0
"""A model whose blocks are compiled one by one gets one plan for all of them, or none and why."""

from __future__ import annotations

import copy
import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jobs import start_meter
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, silu
from torch.utils.checkpoint import checkpoint

import reprise
from reprise.torch.check.result import GRADIENTS
from reprise.torch.joint.job import CompiledJob
from reprise.torch.joint.joint_graph import BackwardMemory, peak_under
from reprise.torch.joint.site import pieces_of
from reprise.torch.joint.whole import MOST_KINDS, Whole
from reprise.torch.training import armed
from reprise.torch.training.loop import open_loops

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.usefixtures("compiles_afresh"),
    pytest.mark.skipif(
        "isolate_recompiles" not in inspect.signature(torch.compile).parameters,
        reason="this torch cannot keep two compilations of a block apart",
    ),
]

WIDTH, WORDS = 32, 48
Compile = Callable[["Net"], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop(self.down(gelu(self.up(self.norm(x)))))
        return x + y


class Net(nn.Module):
    """Embedding, loss and what is between the blocks stay eager."""

    def __init__(self, blocks: int = 3, times: int = 1, checkpointed: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, WORDS)
        self.times, self.checkpointed = times, checkpointed

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x)
        for block in [*self.blocks] * self.times:
            y = checkpoint(block, y, use_reentrant=False) if self.checkpointed else block(y)
        return self.head(y)  # type: ignore[no-any-return]


def in_place(net: Net, backend: str = "aot_eager") -> None:
    for block in net.blocks:
        block.compile(backend=backend, fullgraph=True)


def wrapped(net: Net) -> None:
    for at, block in enumerate(net.blocks):
        net.blocks[at] = torch.compile(block, backend="aot_eager")


def trained(
    net: Net, budget: str | None = None, *, every: int = 0, steps: int = 6
) -> tuple[list[str], list[tuple[int, int]], CompiledJob | None]:
    """Returns losses, and for each step what is alive at its beginning and its peak."""
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    job = None if budget is None else CompiledJob(net, budget, every, verify=GRADIENTS)
    meter = start_meter()
    torch.manual_seed(3)
    losses, peaks = [], []
    for _ in range(steps):
        x = torch.randint(0, WORDS, (16, 32))
        optimizer.zero_grad()
        begin = meter.live()
        meter.reset_peak()
        loss = cross_entropy(net(x).flatten(0, 1), x.flatten())
        loss.backward()
        peaks.append((begin, meter.peak()))
        optimizer.step()
        losses.append(loss.item().hex())
        del loss
    meter.stop()
    if job is not None:
        job.remove()
    return losses, peaks, job


def made(compile: Compile = in_place, **options: Any) -> Net:
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = Net(**options).train()
    compile(net)
    return net


def without_meter(job: CompiledJob) -> bool:
    return job.memory.meter is None


@pytest.mark.parametrize(("compile", "share"), [(in_place, 0.6), (wrapped, 0.8)])
def test_blocks_keep_a_budget_under_one_plan_with_the_bits_of_the_plain_job(
    compile: Compile, share: float
) -> None:
    expected, plain, _ = trained(made(compile))

    net = made(compile)
    before = [dict(vars(module)) for module in net.modules()]
    found, peaks, job = trained(net, f"{share}x", every=50)

    assert job is not None
    # When it is over, the blocks are as the program compiled them.
    for module, own in zip(net.modules(), before, strict=True):
        assert vars(module).keys() == own.keys()
        for name in ("forward", "_compiled_call_impl"):
            assert vars(module).get(name) is own.get(name)
    if without_meter(job):
        pytest.skip("needs the exact meter")
    assert found == expected
    assert job.checks == 1
    assert len(job.joint.plans) == 1, job.job.why
    begin, base = plain[-1]
    assert max(peak - start for start, peak in peaks[4:]) <= share * (base - begin)
    # What the program holds between its parts is counted wherever the plan peaks.
    below = job.over.predicted_peak_bytes - job.over.measured_peak_bytes
    assert 0 <= below <= 0.05 * job.over.predicted_peak_bytes


def test_a_plan_that_treats_equal_blocks_in_two_ways_has_two_kinds_of_them() -> None:
    blocks = 10  # more than torch.compile would keep of one function in the program's own cache

    expected, _, _ = trained(made(blocks=blocks), steps=5)
    found, _, job = trained(made(blocks=blocks), "0.75x", steps=5)

    assert job is not None
    if without_meter(job):
        pytest.skip("needs the exact meter")
    assert found == expected
    assert not job.job.why
    assert len(job.joint.graphs) == 1
    kinds = job.code._site.kinds
    assert sorted(kinds) == list(range(blocks))
    assert len(set(kinds.values())) > 1
    # Nothing runs again that the planner did not ask for.
    recomputed = job.joint.plans[0].recomputed_ops
    assert job.over._whole is not None
    assert job.over._whole.split(recomputed).again == set(recomputed)


def test_more_kinds_than_torch_compile_keeps_become_fewer_and_run_again_what_either_does() -> None:
    blocks = 3 * MOST_KINDS
    _, _, job = trained(made(blocks=1), "0.9x", steps=2)
    assert job is not None
    graph = job.joint.graphs[0]
    whole = Whole([graph], [0] * blocks, list(range(blocks)))
    ops = whole.message(1000)["ops"]
    of_call = [call.ops for call in whole._calls]
    forward = [n for n, o in enumerate(graph["ops"]) if n and o["phase"] == "PHASE_FORWARD"]

    # Every block another one of 2^k sets.
    wanted = {
        calls[own]
        for block, calls in enumerate(of_call)
        for bit, own in enumerate(forward[:5])
        if block >> bit & 1
    }
    decided = whole.split(tuple(wanted))

    assert 1 < len(decided.graphs) <= MOST_KINDS
    assert set(decided.kinds.values()) == set(range(len(decided.graphs)))
    assert wanted <= decided.again
    assert {ops[op]["phase"] for op in decided.again} == {"PHASE_FORWARD"}


@pytest.mark.parametrize("left", [0.0, 0.5, 1.0])
def test_gradients_that_the_program_lets_go_of_between_two_backwards_are_not_held(
    left: float,
) -> None:
    _, _, job = trained(made(blocks=1), "0.9x", steps=2)
    assert job is not None
    graph = job.joint.graphs[0]
    calls, parts = [0, 0], [0, 1]
    base = Whole([graph], calls, parts).message(0)
    backward = [op for op in base["ops"] if op["phase"] == "PHASE_BACKWARD"]
    between = next(n for n, op in enumerate(backward) if op["name"] == "reprise.between")
    sizes = {s["id"]: s["bytes"] for s in base["storages"]}
    stay = sum(sizes[i] for i in base["required"])
    made_before = {i for op in backward[:between] for i in op["writes"]}
    gradients = sum(sizes[i] for i in base["required"] if i in made_before)
    ended = BackwardMemory(ended_live=10 * gradients)
    began = BackwardMemory(
        began_live=int((9 + left) * gradients), before_peak=int((11.5 + left) * gradients)
    )

    message = Whole([graph], calls, parts, [began, ended]).message(0)

    sizes = {s["id"]: s["bytes"] for s in message["storages"]}
    assert gradients > 0
    assert stay - sum(sizes[i] for i in message["required"]) == int((1 - left) * gradients)
    (op,) = (op for op in message["ops"] if op["name"] == "reprise.between")
    if left < 1:
        assert sum(sizes[i] for i in op["reads"]) == gradients
        # What it peaked at, beside what it reads and writes.
        assert op["workspace_bytes"] == int(1.5 * gradients)
        assert peak_under(message, set()) <= peak_under(base, set()) + 2 * gradients
    else:
        assert message == base


@pytest.mark.parametrize("options", [{"times": 2}, {"checkpointed": True}])
def test_blocks_that_are_called_again_have_the_bits_of_the_plain_job(
    options: dict[str, Any],
) -> None:
    expected, _, _ = trained(made(**options))

    found, _, job = trained(made(**options), "0.8x", every=50)

    assert job is not None
    assert found == expected
    assert without_meter(job) or job.checks or job.job.why


def test_bytes_are_for_the_whole_process_and_are_kept() -> None:
    _, plain, _ = trained(made())
    budget = int(plain[-1][1] * 0.75)

    _, peaks, job = trained(made(), str(budget))

    assert job is not None
    if without_meter(job):
        pytest.skip("needs the exact meter")
    assert not job.job.why
    assert max(peak for _, peak in peaks[4:]) <= budget


def test_a_budget_that_nothing_meets_is_refused_and_the_blocks_train_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected, _, _ = trained(made())

    found, _, job = trained(made(), "0.05x")

    assert job is not None
    assert found == expected
    if not without_meter(job):
        assert "; training continues without a plan" in job.job.why
        assert capsys.readouterr().err.count("training continues without a plan") == 1


def test_a_copy_of_a_model_with_planned_blocks_is_a_plain_one() -> None:
    net = made()
    reprise.auto(net, budget="0.8x")
    assert isinstance(armed.current(net), CompiledJob)

    twin = copy.deepcopy(net)

    assert "forward" not in vars(twin)
    assert armed.current(twin) is None
    reprise.remove(net)


def test_a_model_with_compiled_blocks_that_is_deleted_leaves_no_parameter_behind() -> None:
    net = made()
    left = [weakref.ref(parameter) for parameter in net.parameters()]
    _, _, job = trained(net, "0.8x", steps=4)

    del net, job
    gc.collect()

    assert [parameter() for parameter in left] == [None] * len(left)
    assert not open_loops


def test_a_model_whose_forward_is_never_called_is_told_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    net = made()
    job = CompiledJob(net, "0.8x", 0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    for _ in range(6):
        optimizer.zero_grad()
        net.blocks[0](torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
    job.remove()

    assert "the forward of the model that was armed is never called" in job.job.why
    assert capsys.readouterr().err.count("is never called") == 1


def test_a_compiled_forward_is_not_planned_in_pieces() -> None:
    net = made()
    assert pieces_of(net) is not None

    net.blocks[0] = Block()
    net.blocks[0].forward = torch.compile(net.blocks[0].forward)  # type: ignore[method-assign]
    assert pieces_of(net) is None


class Gated(nn.Module):
    """A block of which AOTAutograd keeps less than its graph shows, beside a large eager head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up, self.gate = nn.Linear(WIDTH, 256), nn.Linear(WIDTH, 256)
        self.down = nn.Linear(256, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(silu(self.up(self.norm(x))) * self.gate(self.norm(x)))
        return x + y


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_what_lies_between_graphs_and_before_micro_batches_is_in_the_prediction(
    micro_batches: int,
) -> None:
    torch.manual_seed(0)
    net = Net(6).train()
    net.blocks = nn.ModuleList(Gated() for _ in range(6))
    net.head = nn.Linear(WIDTH, 1000)
    in_place(net)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    job = CompiledJob(net, "0.7x", 0)
    for _ in range(6):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            x = torch.randint(0, WORDS, (16, 32))
            cross_entropy(net(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
    job.remove()

    if without_meter(job):
        pytest.skip("needs the exact meter")
    assert not job.job.why
    assert job.job.record.verdict().over_budget_steps == 0
    assert job.joint.executor.handles[0].plan.replan == 0
    below = job.over.predicted_peak_bytes - job.over.measured_peak_bytes
    assert 0 <= below <= 0.04 * job.over.predicted_peak_bytes
