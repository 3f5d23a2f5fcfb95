# SPDX-License-Identifier: Apache-2.0
"""Memory runs out in a planned step: its forward or its backward once more, under a tighter plan.

    later = Later(session)
    later.before(call, args, kwargs); out = ...; later.after(out)     # a planned forward
    later.close()

Of every planned forward that gives something up is remembered from which state it ran, and of the
backward that follows, what has come to the model's outputs from outside. When memory runs out, what
is left of the graph is let go, the next plan is asked for within less and waited for, the forward
runs again, and the backward from its outputs on. Gradients that were there before (accumulation)
and have not been added to yet are the only ones that the second backward adds to.

Only where that is the same step to the bit:

    one process, an ordinary `loss.backward()` that does not keep its graph, through outputs of the
    last forward of one armed model and of nothing else that has parameters
    what was added to a gradient is known: no parameter tells of its gradients, each is at the
    version from before, or one further
    no input of the model wants a gradient or was written since; no parameter was written since
    the forward can run once more unnoticed (repeatable.py), as seen in the first planned step
    the gradients of its outputs take at most SMALL bytes; once memory has run out, any
    its inputs are small, or still there: a large batch that is deleted before the backward is not

Else the program gets its error, one sentence says why, and its next step waits for the tighter
plan.

Costs one look at every parameter and buffer per forward, copies of the small buffers, and a walk
through the graph between outputs and loss per backward: 0.7 and 0.6 ms for 300 parameters and 225
buffers. What goes wrong with that is not the job's: nothing is taken again then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from reprise.torch.again import told
from reprise.torch.engine import around, no_longer
from reprise.torch.host import host_bytes
from reprise.torch.oom import is_oom, several_ranks
from reprise.torch.ops import tensors_in
from reprise.torch.outside import OutsideCopy
from reprise.torch.repeatable import Remembered, hooked
from reprise.torch.spent import leaves, let_go, reach
from reprise.torch.verify import Autocast, Generators

if TYPE_CHECKING:
    from reprise.torch.session import Session

__all__ = ["Forward", "Later"]

# Of the gradients of outputs, in a job whose memory has not run out; and of a buffer or an input
# that is copied before every forward: statistics and tokens are smaller, masks and images larger.
SMALL = 1 << 20
STATISTICS = 1 << 16

_open: list[Later] = []
_running = False


class State:
    """Parameters and buffers of a model, and what stood in the buffers. Asked for before every
    forward, so found once and copied into the same place, outside the allocator."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self._places = [
            (module._buffers, name, buffer)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        strided = [b for *_, b in self._places if b.layout == torch.strided and b.numel()]
        self._small = [b for b in strided if b.nbytes <= STATISTICS]
        self._copies = [
            host_bytes(b.nbytes, b.device).view(b.dtype).view(b.shape) for b in self._small
        ]
        small = {id(b) for b in self._small}
        self._large = [b for *_, b in self._places if id(b) not in small]
        self._versions: list[int] = []

    def take(self) -> None:
        """As it is now."""
        with torch.no_grad():
            if self._small:
                # Into pinned memory a GPU copies while the forward begins (not run on one).
                torch._foreach_copy_(self._copies, self._small, non_blocking=True)
        self._versions = [t._version for t in (*self.parameters, *self._large)]

    @property
    def same(self) -> bool:
        """Are the tensors those of the model still?"""
        return all(found.get(name) is buffer for found, name, buffer in self._places)

    def differs(self, model: nn.Module) -> bool:
        """Was anything written since that cannot be put back, or is there anything else now?"""
        now = State(model)
        return (
            [id(p) for p in now.parameters] != [id(p) for p in self.parameters]
            or [id(b) for *_, b in now._places] != [id(b) for *_, b in self._places]
            or [t._version for t in (*self.parameters, *self._large)] != self._versions
        )

    def restore(self) -> None:
        """The buffers as they were."""
        if any(b.device.type == "cuda" for b in self._small):
            torch.cuda.synchronize()
        with torch.no_grad():
            for buffer, copy in zip(self._small, self._copies, strict=True):
                buffer.copy_(copy)


class Forward:
    """One planned forward, and what it takes to run it again."""

    def __init__(self, state: State, call: Any, args: Any, kwargs: Any) -> None:
        self.call = call
        self._arguments = _kept((args, kwargs))
        self.generators, self.autocast = Generators(), Autocast()
        self.state = state
        state.take()
        self.outputs: dict[tuple[int, str, int], int] = {}  # of autograd nodes -> position
        self.bytes = 0  # of their gradients

    def ended(self, out: Any) -> None:
        """Its outputs."""
        for position, tensor in enumerate(tensors_in(out)):
            node = tensor.grad_fn
            if node is not None:
                key = (node._sequence_nr(), node.name(), tensor.output_nr)
                self.outputs.setdefault(key, position)
                self.bytes += tensor.nbytes

    def arguments(self) -> tuple[Any, Any] | None:
        """What it was called with, if all of it is still there and as it was."""
        try:
            args, kwargs = _given(self._arguments)
        except ReferenceError:
            return None
        return args, kwargs

    def obstacle(self, session: Session) -> str:
        """Why it cannot run again now; empty: it can."""
        rung = session.planning.rung
        arguments = self.arguments()
        session.step.stop_check()  # which listens to gradients, too
        if several_ranks() or session.planning.together is not None:
            return "other ranks would not"
        if arguments is None:
            return "its inputs are gone or were written since"
        if any(not p.is_leaf or told(p) for p in session.model.parameters()):
            return "a parameter tells of its gradients"
        if rung is None or not rung.repeats or hooked(session.model):
            return "its forward would be noticed a second time"
        if self.state.differs(session.model):
            return "parameters or large buffers have been written since its forward"
        return ""


class _Attempt:
    """One call of the engine, as far as one armed model has to do with it."""

    def __init__(self, later: Later, heads: Any, rest: tuple[Any, ...]) -> None:
        self.later = later
        self._heads = heads
        self._forward = later.forward
        self._grads: dict[int, OutsideCopy] = {}
        self._seeds: list[int] = []
        self._before: list[tuple[Any, int]] = []
        self._handles: list[Any] = []
        self.why = self._prepare(heads, rest)

    @property
    def concerned(self) -> bool:
        """It comes to outputs of the model."""
        return bool(self._seeds)

    def _prepare(self, heads: Any, rest: tuple[Any, ...]) -> str:
        forward, session = self._forward, self.later.session
        _, keep, create, inputs = (*rest, None, None, None, None)[:4]
        if keep or create or inputs:
            return "it keeps its graph for another one, or is not an ordinary one"
        if forward is None:
            return "its forward was not one that can be taken again"
        nodes, alone = reach(heads, forward.outputs)
        self._seeds = sorted({position for _, _, position in nodes})
        if not self._seeds:
            return "it does not come to the outputs of the last forward"
        if not alone:
            return "something outside the model has parameters, too"
        if self.later.taking:
            return "it was taken again already"
        if forward.bytes > SMALL and not session.short_of_memory:
            return "the gradients of the model's outputs are kept only once memory has run out"
        for node, number, position in nodes:
            self._handles.append(node.register_prehook(self._arrives(number, position)))
        parameters = forward.state.parameters
        if any(p.grad is not None for p in parameters):
            self._before = [_gradient(p) for p in parameters]
        return ""

    def _arrives(self, number: int, position: int) -> Callable[[tuple[Any, ...]], None]:
        def hook(grads: tuple[Any, ...]) -> None:
            if grads[number] is not None:
                self._grads[position] = OutsideCopy(grads[number])

        return hook

    def over(self) -> None:
        """It has run, or failed."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def obstacle(self) -> str:
        """Why it cannot be taken again; empty: it can."""
        forward, session = self._forward, self.later.session
        if self.why or forward is None:
            return self.why
        if sorted(self._grads) != self._seeds:
            return "memory ran out before it came to the model"
        own = {id(p) for p in session.model.parameters()}
        if any(id(leaf) not in own for leaf in leaves(self._heads)):
            return "something else than the model's parameters has gradients, too"
        return forward.obstacle(session)

    def again(self, why: str) -> None:
        """Takes it again."""
        session, forward = self.later.session, self._forward
        assert forward is not None
        arguments = forward.arguments()
        assert arguments is not None
        left = self._left()
        let_go(self._heads)
        after = Generators()
        self.later.taking = True
        try:
            out = session.retake(forward, arguments, f"out of memory in a backward ({why})")
            after.restore()
            found = list(tensors_in(out))
            del out
            handles = [
                # Of an output that another one was made from, that is part of it already.
                found[at].register_hook(lambda _, copy=copy: copy.tensor())
                for at, copy in self._grads.items()
            ]
            if left is None or left:
                grads = [self._grads[at].tensor() for at in self._seeds]
                torch.autograd.backward([found[at] for at in self._seeds], grads, inputs=left)
            for handle in handles:
                handle.remove()
        finally:
            self.later.taking = False

    def _left(self) -> list[Tensor] | None:
        """The parameters that nothing has been added to; None: all, their gradients were new."""
        assert self._forward is not None
        parameters = self._forward.state.parameters
        if not self._before:
            for parameter in parameters:
                parameter.grad = None
            return None
        left: list[Tensor] = []
        for parameter, (seen, version) in zip(parameters, self._before, strict=True):
            grad = parameter.grad
            if grad is None:
                same = version < 0
            else:
                same = version >= 0 and grad is seen() and grad._version == version
            if same and parameter.requires_grad:
                left.append(parameter)
        return left


class Later:
    """Of one session, from its first planned step on."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.forward: Forward | None = None  # the last one
        self.taking = False  # something is being taken again
        self._state: Remembered | None = None
        self._parts: State | None = None

    def before(self, call: Any, args: Any, kwargs: Any) -> None:
        """A planned forward is about to run."""
        self.open()
        self.forget()
        try:
            self._remember(call, args, kwargs)
        except Exception as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        self.forget()
        what = f"{type(error).__name__}: {error}"
        self.session.say(f"planned steps are not taken again when memory runs out ({what})")

    def _remember(self, call: Any, args: Any, kwargs: Any) -> None:
        rung = self.session.planning.rung
        if rung is None or rung.tape is None or not rung.tape.program.replays:
            return
        if self._parts is None or not self._parts.same:
            self._parts = State(self.session.model)
        self.forward = Forward(self._parts, call, args, kwargs)
        if rung.repeats is None:
            self._state = Remembered(self.session.model)

    def forget(self) -> None:
        """Another step begins."""
        self.forward = self._state = None

    def after(self, out: Any) -> None:
        """It has run."""
        try:
            self._ended(out)
        except Exception as error:
            self._lost(error)

    def _ended(self, out: Any) -> None:
        if self.forward is not None:
            self.forward.ended(out)
        rung = self.session.planning.rung
        if self._state is not None and rung is not None:
            rung.repeats = not self._state.differs(Remembered(self.session.model))
            self._state = None

    def failed(self) -> tuple[Forward, tuple[Any, Any]] | None:
        """Memory ran out in the forward: what it takes to run it again, where it can."""
        forward, self.forward = self.forward, None
        rung = self.session.planning.rung
        if forward is None or rung is None or self.taking:
            return None
        if self._state is not None:
            rung.repeats = not self._state.differs(Remembered(self.session.model))
            self._state = None
        arguments = forward.arguments()
        return None if arguments is None or forward.obstacle(self.session) else (forward, arguments)

    def open(self) -> None:
        """Calls of the engine come here from now on."""
        if self in _open:
            return
        around(_run)
        _open.append(self)

    def close(self) -> None:
        """No longer. Idempotent."""
        self.forget()
        self._parts = None
        if self in _open:
            _open.remove(self)
            if not _open:
                no_longer(_run)


def _run(engine: Any, heads: Any, *rest: Any, **options: Any) -> Any:
    """Around the engine while a session of this process is planned."""
    global _running
    idle = not any(later.session.step.run is not None for later in _open)
    if _running or idle or any(later.session.busy for later in _open):
        return engine(heads, *rest, **options)
    tries = []
    if options.get("accumulate_grad"):
        under_way = [later for later in _open if later.session.step.run is not None]
        try:
            tries = [_Attempt(later, heads, rest) for later in under_way]
        except Exception as error:
            under_way[0]._lost(error)
    _running = True
    try:
        return engine(heads, *rest, **options)
    except BaseException as error:
        if not is_oom(error):
            raise
        text = (str(error).splitlines() or [type(error).__name__])[0]
        attempt, obstacle = _which(tries)
        session = (attempt.later if attempt else _latest()).session
        session.where.ran_out(error)
        if attempt is None or obstacle:
            session.gave_up(f"out of memory in a backward ({text})", obstacle)
            raise
    finally:
        _running = False
        for one in tries:
            one.over()
    # Outside the handler: its traceback would keep what the failed backward held.
    attempt.again(text)
    return ()


def _which(tries: list[_Attempt]) -> tuple[_Attempt | None, str]:
    """Whose forward is to be taken again, and why it cannot be."""
    concerned = [attempt for attempt in tries if attempt.concerned]
    if not concerned:
        return None, tries[0].why if tries else "torch.autograd.grad hands its gradients out"
    if len(concerned) > 1:
        return concerned[0], "it goes through two models that are armed"
    try:
        return concerned[0], concerned[0].obstacle()
    except Exception as error:
        return concerned[0], f"{type(error).__name__}: {error}"


def _latest() -> Later:
    """Whose step is under way."""
    return [later for later in _open if later.session.step.run is not None][-1]


def _gradient(parameter: Tensor) -> tuple[Any, int]:
    """A gradient and its version, to know it by; -1: there is none."""
    grad = parameter.grad
    if grad is None:
        return None, -1
    return (lambda: grad) if grad.is_sparse else weakref.ref(grad), grad._version


class _Input:
    """A tensor that a forward was called with. A small one is copied, out of the allocator's sight;
    a large one lives no longer than without us."""

    __slots__ = ("_copy", "_version", "_weak")

    def __init__(self, tensor: Tensor) -> None:
        small = tensor.nbytes <= STATISTICS and tensor.layout == torch.strided
        self._weak = None if small else weakref.ref(tensor)
        self._copy = None
        if small:
            self._copy = OutsideCopy(tensor) if tensor.device.type == "cpu" else tensor
        self._version = tensor._version

    def tensor(self) -> Tensor:
        """As it was. ReferenceError: it is gone, or was written since."""
        if isinstance(self._copy, OutsideCopy):
            return self._copy.tensor()
        found = self._copy if self._weak is None else self._weak()
        if found is None or found._version != self._version:
            raise ReferenceError
        return found


def _kept(value: Any) -> Any:
    """Arguments with something for every tensor that gives it back."""
    if isinstance(value, Tensor):
        return _Input(value)
    if isinstance(value, dict):
        return {key: _kept(v) for key, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_kept(v) for v in value)
    return value


def _given(value: Any) -> Any:
    """The arguments again. ReferenceError: one of them is not there any more."""
    if isinstance(value, _Input):
        return value.tensor()
    if isinstance(value, dict):
        return {key: _given(v) for key, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_given(v) for v in value)
    return value
