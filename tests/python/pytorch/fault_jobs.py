# SPDX-License-Identifier: Apache-2.0
"""Small training jobs that lead through all of the adapter, for faults.py. More of them: with a
daemon (fault_jobs_daemon.py), compiled (fault_jobs_compiled.py), two ranks (fault_jobs_ranks.py).

job = KINDS["planned"](armed=True); digest = job()
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[3] / "clients" / "python" / "src"
for folder in (Path(__file__).parent, SOURCE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import torch  # noqa: E402
from arming import arm  # noqa: E402
from local_agent import LocalAgent  # noqa: E402
from nets import WIDTH, RandomNet  # noqa: E402
from out_of_memory import Failing  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import reprise  # noqa: E402
from reprise.torch.compiled.fast import FAST  # noqa: E402
from reprise.torch.internals.entry import otherwise  # noqa: E402
from reprise.torch.offload.slow_tier import SlowTier  # noqa: E402
from reprise.torch.recovery import planned_retry  # noqa: E402
from reprise.torch.training.armed import current  # noqa: E402

__all__ = [
    "KINDS",
    "SOURCE",
    "Job",
    "finished",
    "kind",
    "local",
    "net",
    "prepare",
    "train",
]

Job = Callable[[], str]
KINDS: dict[str, Callable[[bool], Job]] = {}

torch.set_num_threads(1)


def kind(make: Callable[[bool], Job]) -> Callable[[bool], Job]:
    """Adds a job to `KINDS`, under the name of the function that makes it."""
    KINDS[make.__name__] = make
    return make


def digest(losses: list[float], modules: Iterable[nn.Module], optimizers: Iterable[Any]) -> str:
    """Returns a digest of everything that a training leaves."""
    found = hashlib.sha256(repr([loss.hex() for loss in losses]).encode())
    for module in modules:
        for name, tensor in module.state_dict().items():
            found.update(name.encode() + tensor.detach().numpy().tobytes())
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    found.update(name.encode() + value.numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
    return found.hexdigest()


def train(
    model: nn.Module,
    steps: int = 8,
    batches: int = 1,
    rows: Callable[[int], int] = lambda step: 6,
    loss_of: Callable[[Any, Tensor], Tensor] | None = None,
    backward: Callable[[Tensor], Any] = Tensor.backward,
) -> str:
    """Trains in an ordinary loop with an optimizer that has momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(batches):
            x = torch.randn(rows(step), WIDTH)
            out = model(x)
            outs = out if isinstance(out, tuple) else (out,)
            loss: Any = sum((o * o).mean() for o in outs) if loss_of is None else loss_of(out, x)
            backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return digest(losses, [model], [optimizer])


def net(seed: int = 2) -> RandomNet:
    torch.manual_seed(0)
    random.seed(0)
    return RandomNet(seed, 10)


def local(model: nn.Module, armed: bool, fast: bool = True, again: float = 0.3, **how: Any) -> None:
    """Arms a model with a planner in this process."""
    os.environ["REPRISE_FAST"] = str(int(fast))
    if armed:
        otherwise(lambda *_, **__: None)(arm)(model, LocalAgent(again=again), **how)  # as auto is


def finished(model: nn.Module) -> None:
    """Asks for the report, as a program does at its end."""
    if current(model) is not None:
        str(reprise.report(model))


@kind
def on_the_host(armed: bool) -> Job:
    """Sends storages and optimizer state to host memory and fetches them."""
    model = net()

    def job() -> str:
        SlowTier.least_bytes = 1
        os.environ["REPRISE_SLOW_TIER"] = "20GB/s"
        local(model, armed, host_bytes=1 << 24)
        return train(model, batches=2)

    return job


@kind
def watched(armed: bool) -> Job:
    """Trains without a budget; nothing is captured."""
    model = net()

    def job() -> str:
        os.environ["REPRISE_CAPTURE"] = "0"
        local(model, armed, budget=None)
        return train(model, 4)

    return job


@kind
def python_half(armed: bool) -> Job:
    """Captured, planned, checked and traced steps, with the tape in Python."""
    model = net()
    return lambda: (local(model, armed, fast=False), train(model), finished(model))[1]


@kind
def compiled_half(armed: bool) -> Job:
    """The same with the native engine of the tape."""
    model = net()
    return lambda: (local(model, armed), train(model), finished(model))[1]


@kind
def hidden_states(armed: bool) -> Job:
    """The loss uses more than the outputs, so values are compared instead of gradients."""

    class Shows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net(3)

        def forward(self, x: Tensor) -> Tensor:
            self.hidden, out = self.inner(x)
            return out  # type: ignore[no-any-return]

    model = Shows()

    def loss_of(out: Tensor, x: Tensor) -> Tensor:
        return out.square().mean() + model.hidden.sin().mean()

    def job() -> str:
        local(model, armed, fast=False)
        found = train(model, loss_of=loss_of)
        del model.hidden
        return found

    return job


@kind
def several_batches(armed: bool) -> Job:
    """Two forwards and backwards per step, with inputs of three sizes."""
    model = net(4)

    def job() -> str:
        local(model, armed, verify_every=5)
        return train(model, 14, batches=2, rows=lambda step: (6, 6, 6, 6, 6, 9, 9, 4)[step % 8])

    return job


@kind
def written_between(armed: bool) -> Job:
    """What was saved for a replay is written after the forward; the graph is kept for a second
    backward; a transform of torch.func runs in the forward."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net(5)
            self.scale = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            slope = torch.func.grad(lambda v: v.sin().sum())(self.scale.detach())
            one, other = self.inner((x + 1.0) * self.scale)
            return (one + slope).sin() * other  # type: ignore[no-any-return]

    model = Odd()

    def loss_of(out: Tensor, x: Tensor) -> Tensor:
        loss = out.square().mean()
        x.zero_()
        return loss

    def backward(loss: Tensor) -> None:
        loss.backward(retain_graph=True)
        loss.backward()

    def job() -> str:
        local(model, armed, verify_every=4)
        return train(model, 9, loss_of=loss_of, backward=backward)

    return job


def _changing(armed: bool, fast: bool) -> Job:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.calls = net(6), net(7), 0

        def forward(self, x: Tensor) -> Any:
            self.calls += 1
            return (self.other if self.calls % 5 == 0 else self.one)(x)

    model = Two()
    return lambda: (local(model, armed, fast=fast), train(model, 14))[1]


@kind
def changing(armed: bool) -> Job:
    """Takes other paths from step to step, and leaves its plans; the tape is in Python."""
    return _changing(armed, fast=False)


@kind
def changing_compiled(armed: bool) -> Job:
    """The same with the native engine of the tape."""
    return _changing(armed, fast=True)


@kind
def two_models(armed: bool) -> Job:
    """Two armed models with two optimizers, one step after the other."""
    one, other = net(8), net(9)

    def job() -> str:
        local(one, armed)
        local(other, armed)
        return train(one) + train(other)

    return job


class Starving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = net(2), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = Failing.apply(self.first(x)[0])  # type: ignore[no-untyped-call]
        return self.last(hidden).sin().exp().tanh()  # type: ignore[no-any-return]


def starving(armed: bool, forwards: dict[int, int], backwards: dict[int, int], **how: Any) -> Job:
    """Runs out of memory in these steps, as often as given. If the program gets the error, it
    repeats the step, as a careful loop does; without Reprise it never gets one."""
    model = Starving()
    planned_retry.LITTLE = 0.0

    def job() -> str:
        local(model, armed, verify_every=4, **how)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for step in range(1, 10):
            Failing.forwards = forwards.get(step, 0) * armed
            Failing.backwards = backwards.get(step, 0) * armed
            state = torch.get_rng_state()
            buffers = {n: b.clone() for n, b in model.named_buffers()}
            for _ in range(3):
                try:
                    optimizer.zero_grad()
                    loss = model(torch.randn(6, WIDTH)).square().mean()
                    loss.backward()
                    break
                except torch.OutOfMemoryError:
                    torch.set_rng_state(state)
                    for name, buffer in model.named_buffers():
                        buffer.copy_(buffers[name])
            optimizer.step()
            losses.append(loss.item())
        return digest(losses, [model], [optimizer])

    return job


@kind
def out_of_memory_forward(armed: bool) -> Job:
    """Memory runs out in planned forwards, and in the first one."""
    return starving(armed, {1: 1, 6: 1, 8: 1}, {}, first="auto")


@kind
def out_of_memory_backward(armed: bool) -> Job:
    """Memory runs out in planned backwards."""
    return starving(armed, {}, {6: 1, 8: 1}, fast=False)


@kind
def first_on_the_host(armed: bool) -> Job:
    """The first steps keep their saved tensors on the host."""
    model = net(2)
    return lambda: (local(model, armed, first="host"), train(model))[1]


@kind
def first_from_shapes(armed: bool) -> Job:
    """The first steps run under a plan made from shapes alone, and one of them is captured so."""

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            random.seed(0)
            self.inner = nn.Sequential(
                nn.Linear(WIDTH, 16), nn.GELU(), nn.BatchNorm1d(16), nn.Dropout(0.2),
                nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, WIDTH),
            )  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).sin().exp()  # type: ignore[no-any-return]

    model = One()
    return lambda: (local(model, armed, first="auto"), train(model))[1]


@kind
def scaled(armed: bool) -> Job:
    """Losses scaled by a GradScaler, a generator of the program, and compared gradients."""

    model = net(3)
    chance = torch.Generator().manual_seed(3)

    def job() -> str:
        local(model, armed, fast=False, verify="gradients", verify_every=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        losses = []
        for _ in range(9):
            optimizer.zero_grad()
            loss = model(torch.randn(6, WIDTH, generator=chance))[0].sin().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return digest(losses, [model], [optimizer])

    return job


@kind
def written_twice(armed: bool) -> Job:
    """A forward that runs again within the backward writes a buffer twice, as it does without
    Reprise: a step finds out who does."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = net(2), nn.BatchNorm1d(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            out = checkpoint(self.norm, self.inner(x)[0], use_reentrant=False)
            return out.sin().exp()  # type: ignore[no-any-return]

    model = Twice()
    return lambda: (local(model, armed, verify_every=1), train(model, 9))[1]


def prepare() -> None:
    """Does what every job of a process would do once: imports, and the set-up of a first step. Then
    forks are cheap, and what is alive here does not slow them down."""
    import torch._dynamo  # an optimizer's first step imports it

    FAST.build(FAST.cache_folder())  # type: ignore[arg-type]
    train(net(), 1)
    train(torch.compile(nn.Linear(WIDTH, WIDTH), backend="aot_eager"), 1)  # type: ignore[arg-type]
    gc.collect()
    gc.freeze()
