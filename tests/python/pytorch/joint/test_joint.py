# SPDX-License-Identifier: Apache-2.0
"""Plans inside torch.compile: tags on the joint graph, the same gradients, less saved."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import referee
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import (
    default_partition,
    min_cut_rematerialization_partition,
)
from zoo import GPT

import reprise
from reprise.base.budget import Budget
from reprise.plan import Plan
from reprise.torch.internals.contracts import INDUCTOR_PASS, JOINT_PASS
from reprise.torch.internals.forward import ArmedForward
from reprise.torch.joint.hooks import FunctorchHook, InductorHook, find_hooks
from reprise.torch.joint.joint_graph import joint_graph, peak_under
from reprise.torch.joint.joint_pass import Ask, JointPass, supported
from reprise.torch.meter.state import open_meter

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("compiles_afresh")]


def install(budget: str, planner: Ask | None = None) -> JointPass:
    """Plans every graph that is compiled from now on."""
    assert not supported()
    joint = JointPass(Budget(budget), planner)
    joint._told = True
    joint.install()
    return joint


def mlp() -> nn.Module:
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    return nn.Sequential(*layers)


def gradients(model: nn.Module, backend: str, x: torch.Tensor) -> tuple[dict[str, Any], int]:
    """Returns the gradients, and the bytes that autograd keeps of what the forward made."""
    saved: dict[int, int] = {}
    static = {p.untyped_storage()._cdata for p in (*model.parameters(), x)}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.untyped_storage()._cdata not in static:
            saved[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
        return t

    call = torch.compile(model, backend=backend)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = call(x)
    out.square().mean().backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found, sum(saved.values())


@pytest.mark.long
@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition", "inductor"])
def test_a_compiled_model_saves_less_and_its_gradients_are_equal(backend: str) -> None:
    x = torch.randn(256, 64)
    model = mlp()
    plain, _ = gradients(copy.deepcopy(model), backend, x)
    _, before = gradients(copy.deepcopy(model), "aot_eager", x)
    torch._dynamo.reset()
    joint = install("0.7x")
    try:
        planned, after = gradients(copy.deepcopy(model), backend, x)
    finally:
        joint.remove()

    (plan,) = joint.plans
    assert plan.recomputed_ops
    assert after < before
    assert all(torch.equal(plain[n], planned[n]) for n in plain)


class Cubic(nn.Module):
    """A GELU written out, as in several public models: the derivatives of its power and its tanh
    have factors that need no gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0))))


def test_factors_that_only_the_backward_needs_are_computed_there() -> None:
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (nn.Linear(64, 256), Cubic(), nn.Linear(256, 64))]
    model, x = nn.Sequential(*layers), torch.randn(256, 64)
    plain, before = gradients(copy.deepcopy(model), "aot_eager", x)
    torch._dynamo.reset()
    joint = install("0.4x")
    try:
        planned, after = gradients(copy.deepcopy(model), "aot_eager", x)
    finally:
        joint.remove()

    (graph,) = (handle.message for handle in joint.executor.handles)
    outside = [op["name"] for op in graph["ops"]].index("reprise.outside")
    assert {op["phase"] for op in graph["ops"][outside:]} == {"PHASE_BACKWARD"}
    assert after < 0.6 * before
    assert all(torch.equal(plain[n], planned[n]) for n in plain)


def test_a_budget_that_no_plan_meets_leaves_the_graph_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = torch.randn(64, 64)
    model = mlp()
    plain, _ = gradients(copy.deepcopy(model), "aot_eager", x)
    torch._dynamo.reset()
    joint = install("0.01x")
    try:
        found, _ = gradients(copy.deepcopy(model), "aot_eager", x)
    finally:
        joint.remove()

    assert joint.plans == []
    assert "compiled without a plan" in capsys.readouterr().err
    assert all(torch.equal(plain[n], found[n]) for n in plain)


def test_auto_plans_a_compiled_model_inside_its_compiled_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import torch._functorch.config as config

    x = torch.randn(256, 64)
    plain, _ = gradients(mlp(), "aot_eager", x)
    torch._dynamo.reset()
    model = torch.compile(mlp(), backend="aot_eager")
    reprise.auto(model, budget="0.7x")
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    try:
        for _ in range(3):  # one compiles, one is measured
            still.zero_grad()
            model(x).square().mean().backward()
            still.step()
    finally:
        reprise.remove(model)

    assert "It fits in" in capsys.readouterr().err
    assert all(torch.equal(plain[n], p.grad) for n, p in model._orig_mod.named_parameters())
    assert config.joint_custom_pass is None
    assert not isinstance(model.forward, ArmedForward)


# ---- Hooks ------------------------------------------------------------------------------


def test_the_hooks_are_removed() -> None:
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    before = functorch.joint_custom_pass, inductor.joint_custom_post_pass

    joint = install("0.5x")
    assert callable(functorch.joint_custom_pass)
    assert callable(inductor.joint_custom_post_pass)
    assert not functorch.enable_autograd_cache
    joint.remove()
    joint.remove()

    assert (functorch.joint_custom_pass, inductor.joint_custom_post_pass) == before
    assert functorch.enable_autograd_cache


@pytest.mark.parametrize(
    ("functorch", "inductor", "found"),
    [
        (["joint_custom_pass"], ["joint_custom_post_pass"], ["functorch", "inductor"]),
        ([], ["joint_custom_post_pass"], ["inductor"]),
        (["joint_custom_pass"], [], ["functorch"]),
        ([], [], []),
    ],
)
def test_compiler_hooks_are_found_by_name(
    functorch: list[str],
    inductor: list[str],
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for contract, names in ((JOINT_PASS, functorch), (INDUCTOR_PASS, inductor)):
        module = contract.name.rpartition(".")[0]
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**dict.fromkeys(names)))

    hooks = find_hooks()

    names = {"joint_custom_pass": "functorch", "joint_custom_post_pass": "inductor"}
    assert [names[h.name] for h in hooks] == found


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("hidden", [None, FunctorchHook, InductorHook])
def test_every_joint_graph_is_seen_once_through_the_available_hooks(
    backend: str, hidden: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def planner(message: dict[str, Any], budget: str) -> tuple[Plan | None, str]:
        seen.append(message)
        return None, "only looking"

    hooks = [h for h in find_hooks() if type(h) is not hidden]
    if hidden is InductorHook:
        hooks[0]._leave_inductor = False  # as find_hooks has it where there is no other
    monkeypatch.setattr("reprise.torch.joint.joint_pass.find_hooks", lambda: hooks)
    joint = install("0.5x", planner)
    try:
        gradients(nn.Linear(64, 64), backend, torch.randn(16, 64))
    finally:
        joint.remove()

    unseen = hidden is FunctorchHook and backend == "aot_eager"
    assert len(seen) == (0 if unseen else 1)


def test_a_torch_without_hooks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprise.torch.joint.joint_pass.find_hooks", list)

    assert "neither" in supported()


def test_an_existing_compiler_pass_runs_first_and_is_restored() -> None:
    import torch._functorch.config as config

    order: list[str] = []

    def theirs(gm: Any, inputs: Any) -> Any:
        order.append("theirs")
        return gm

    def planner(message: dict[str, Any], budget: str) -> tuple[Plan | None, str]:
        order.append("ours")
        return None, "only looking"

    with config.patch(joint_custom_pass=theirs):
        joint = install("0.5x", planner)
        try:
            gradients(mlp(), "aot_eager", torch.randn(16, 64))
        finally:
            joint.remove()
        assert config.joint_custom_pass is theirs

    assert order == ["theirs", "ours"]


# ---- Op by op ---------------------------------------------------------------------------


def parts(model: nn.Module, x: torch.Tensor, partition: Any, joint: JointPass) -> tuple[Any, Any]:
    """Returns the forward and the backward graph that the partitioner makes."""
    got: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def compiler(gm: Any, _: Any) -> Any:
            got[name] = gm
            return make_boxed_func(gm)

        return compiler

    backend = aot_autograd(
        fw_compiler=keep("forward"), bw_compiler=keep("backward"), partition_fn=partition
    )
    torch.compile(model, backend=backend)(x).float().square().mean().backward()
    return got["forward"], got["backward"]


JOBS: dict[str, Any] = {
    "mlp": (mlp, lambda: torch.randn(256, 64), "0.7x"),
    "gpt": (lambda: GPT(2), lambda: torch.randint(0, 64, (8, 32)), "0.85x"),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
def test_the_partitioner_does_what_the_plan_says_for_every_op(
    name: str, partition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, batch, budget = JOBS[name]
    seen: list[Any] = []
    monkeypatch.setattr(
        "reprise.torch.joint.joint_pass.joint_graph",
        lambda graph: seen.append(joint_graph(graph)) or seen[-1],
    )
    joint = install(budget)
    try:
        forward, backward = parts(make().train(), batch(), partition, joint)
    finally:
        joint.remove()

    ((message, made),) = seen
    (plan,) = joint.plans
    ops = message["ops"]
    storage_of = {node.name: storage for node, storage in made}
    ops_by_name = {
        message["storages"][s]["name"]: o for o, op in enumerate(ops) for s in op["writes"]
    }
    run_again = {
        ops_by_name[n.name]
        for n in backward.graph.nodes
        if n.op == "call_function" and n.name in storage_of and n.name in ops_by_name
    }
    outputs = next(n for n in forward.graph.nodes if n.op == "output").args[0]
    saved = {storage_of[n.name] for n in outputs if getattr(n, "name", "") in storage_of}
    again = {i for o in plan.recomputed_ops for i in ops[o]["writes"]}
    needed = {i for o in plan.recomputed_ops for i in ops[o]["reads"]} | {
        i for op in ops if op["phase"] == "PHASE_BACKWARD" for i in op["reads"]
    }
    kept = (needed & set(storage_of.values())) - again
    if partition is default_partition:
        assert run_again == set(plan.recomputed_ops)
        assert saved - set(message["required"]) == kept - set(message["required"])
    else:  # merges equal ops before it partitions
        assert run_again <= set(plan.recomputed_ops)
        assert saved <= kept | set(message["required"])
    assert run_again


@pytest.mark.parametrize("budget", ["0.9x", "0.8x"])
def test_a_compiled_step_peaks_where_the_tags_say(
    budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "reprise.torch.joint.joint_pass.joint_graph",
        lambda graph: seen.append(joint_graph(graph)) or seen[-1],
    )
    model, x = GPT(3).train(), torch.randint(0, 64, (8, 64))
    meter = open_meter("cpu")
    meter.start(0)
    joint = install(budget)
    try:
        compiled = torch.compile(model, backend="aot_eager")
        for _ in range(2):  # the first one compiles
            model.zero_grad()
            before = meter.live()
            meter.reset_peak()
            compiled(x).square().mean().backward()
    finally:
        joint.remove()
    measured = meter.peak() - before
    meter.stop()

    ((message, _),) = seen
    (plan,) = joint.plans
    predicted = peak_under(message, set(plan.recomputed_ops))
    assert predicted <= plan.budget_bytes
    assert predicted == plan.peak_bytes or plan.executor != "joint"
    if meter.exact:
        # What the loss takes is assumed, and its value is some bytes.
        found = measured + message["static_bytes"]
        assert 0.98 * predicted <= found <= predicted + 64


class Picks(nn.Module):
    """Its forward masks with zeros that its backward makes again to put a gradient into."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y = layer(x).tanh().exp().view(1, -1, 256)
            zeros = torch.zeros((1, 512, 256))
            x = x + torch.where(y > 2, zeros, y).select(0, 0)
        return x


def test_constants_that_both_halves_use_are_saved_and_counted_once() -> None:
    """The partitioner of Inductor makes one of equal ops, and keeps what it makes."""
    model, x = Picks(), torch.randn(512, 256)
    meter = open_meter("cpu")
    meter.start(0)
    seen: list[Any] = []
    joint = install("0.8x", lambda message, budget: seen.append(message) or (None, "only looking"))
    try:
        compiled = torch.compile(model, backend="inductor")
        out = compiled(x)
        kept = [t.untyped_storage() for t in out.grad_fn.saved_tensors]
    finally:
        joint.remove()
        meter.stop()

    (message,) = seen
    sizes = [s["bytes"] for s in message["storages"]]
    # One op makes the zeros: one of the forward, which the backward reads.
    (zeros,) = (
        op for op in message["ops"]
        if op["name"] == "aten.full.default" and sizes[op["writes"][0]] == x.nbytes
    )  # fmt: skip
    assert zeros["phase"] == "PHASE_FORWARD"
    assert message["storages"][zeros["writes"][0]]["saved_for_backward"]
    saved = [s["bytes"] for s in message["storages"] if s["saved_for_backward"]]
    own = {p.untyped_storage()._cdata for p in model.parameters()} | {x.untyped_storage()._cdata}
    assert sum({s._cdata: s.nbytes() for s in kept if s._cdata not in own}.values()) <= sum(saved)


def test_ops_are_measured_with_the_shapes_and_strides_of_the_graph() -> None:
    seen: list[dict[str, Any]] = []

    def planner(message: dict[str, Any], budget: str) -> tuple[Plan | None, str]:
        seen.append(message)
        return None, "only looking"

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large = nn.Parameter(torch.randn(512, 512))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.sin() @ self.large @ self.large).cos()[:2, :2].exp()

    joint = install("0.5x", planner)
    try:
        gradients(Both(), "aot_eager", torch.randn(512, 512))
    finally:
        joint.remove()

    times = {op["name"]: op["time_ns"] for op in seen[0]["ops"]}
    assert times["aten.mm.default"] > 10 * times["aten.exp.default"] > 0
    assert seen[0]["flavour"] == "aot-joint"


def test_any_graph_survives_a_round_trip() -> None:
    """Looking at sizes must not fix them: there is one graph for all batches, planned once."""
    model = mlp()
    plain = [gradients(copy.deepcopy(model), "aot_eager", torch.ones(n, 64))[0] for n in (96, 160)]
    torch._dynamo.reset()
    joint = install("0.7x")
    try:
        compiled = torch.compile(model, backend="aot_eager", dynamic=True)
        for n, expected in zip((96, 160), plain, strict=True):
            model.zero_grad()
            compiled(torch.ones(n, 64)).square().mean().backward()
            assert all(torch.equal(expected[k], p.grad) for k, p in model.named_parameters())
    finally:
        joint.remove()

    assert len(joint.plans) == 1
    assert joint.plans[0].recomputed_ops


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.inner(x).sin(), 0.3).exp()  # type: ignore[no-any-return]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_graph_with_random_ops_has_the_gradients_of_the_same_graph_without_a_plan(
    backend: str,
) -> None:
    x, model = torch.randn(256, 64), Drops()

    def run() -> dict[str, Any]:
        torch._dynamo.reset()
        torch.manual_seed(5)
        return gradients(copy.deepcopy(model), backend, x)[0]

    plain = run()
    joint = install("0.85x")
    try:
        planned = run()
    finally:
        joint.remove()

    assert joint.plans
    assert joint.plans[0].recomputed_ops
    assert all(torch.equal(plain[n], planned[n]) for n in plain)


def test_a_joint_graph_is_a_step_graph_that_runs() -> None:
    seen: list[dict[str, Any]] = []

    def planner(message: dict[str, Any], budget: str) -> tuple[Plan | None, str]:
        seen.append(message)
        return None, "only looking"

    joint = install("0.5x", planner)
    try:
        model = GPT(1)
        torch.compile(model, backend="aot_eager")(
            torch.zeros(2, 8, dtype=torch.int64)
        ).sum().backward()
    finally:
        joint.remove()

    (message,) = seen
    peak, _, _ = referee.evaluate(message, referee.base_schedule(message))
    assert peak > message["static_bytes"] > 0
    kinds = {op["name"]: op["kind"] for op in message["ops"] if op["phase"] == "PHASE_FORWARD"}
    assert any(s["saved_for_backward"] for s in message["storages"])
    assert "OP_KIND_PURE" in kinds.values()
