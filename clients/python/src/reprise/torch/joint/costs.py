# SPDX-License-Identifier: Apache-2.0
"""What the ops of a joint graph cost, measured on this device while it is compiled.

    costs = JointCosts()
    costs.of(node, touched_bytes)        # ns, and bytes taken inside beyond inputs and outputs
    costs.close()

A graph that is being compiled holds sizes only. Each distinct call (op, sizes, types) is run on
tensors made for it, the first time to warm up; a transformer has some fifty. What cannot be run
(indices that would be out of range, no memory, kernels with side effects) and what comes after the
time is used up gets a roofline (assumed.py) and no workspace. Inductor fuses what stands alone
here, so its elementwise ops are faster than measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from reprise.base.errors import RepriseError
from reprise.torch.estimation.assumed import roofline_ns
from reprise.torch.internals.ops import tensors_in
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.state import now_ns, open_meter

# For all measurements of a graph; and no op is measured that touches more than this.
BUDGET_NS = 2_000_000_000
MOST_BYTES = 1 << 30
# Draw from another place than a generator, or communicate.
_NOT_RUN = ("seed", "inductor", "c10d", "higher_order")


def hint(size: Any) -> int:
    """Returns a size of a graph with symbols, as it was when the graph was traced; asking for the
    size itself would fix it for ever."""
    if type(size) is int:
        return size
    known = getattr(getattr(size, "node", None), "hint", None)
    if known is None:
        raise _NotRun("a size is known only when the graph runs")
    return int(known)


class JointCosts:
    """Times and workspaces of calls, each distinct one measured once."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[int, int]] = {}
        self._meters: dict[torch.device, Meter | None] = {}
        self._left = BUDGET_NS
        self.measured = 0

    def of(self, node: Any, touched_bytes: int) -> tuple[int, int]:
        """Returns the time (ns) and workspace (bytes) of a node."""
        name = str(node.target)
        found = None
        plain = isinstance(node.target, torch._ops.OpOverload) and touched_bytes <= MOST_BYTES
        if plain and not any(word in name for word in _NOT_RUN):
            with suppress(_NotRun):
                key = name, str(tree_map(_shape, _values(node)))
                found = self._known.get(key)
                if found is None and self._left > 0:
                    found = self._known[key] = self._measure(node)
                    self.measured += 1
        return (roofline_ns(name, touched_bytes), 0) if found is None else found

    def close(self) -> None:
        """Stops the memory meters."""
        for meter in self._meters.values():
            if meter is not None:
                meter.stop()
        self._meters.clear()

    def _measure(self, node: Any) -> tuple[int, int]:
        from torch.utils._python_dispatch import _disable_current_modes

        begin = time.perf_counter_ns()
        with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng():
            args, kwargs = tree_map(_real, _values(node))
            out = _run(node.target, args, kwargs)
            device = next((t.device for t in tensors_in(args, out)), torch.device("cpu"))
            meter = self._meter(device)
            del out
            live = meter.live() if meter is not None else 0
            if meter is not None:
                meter.reset_peak()
            out = _run(node.target, args, kwargs)
            workspace = max(0, meter.peak() - max(live, meter.live())) if meter is not None else 0
            times = []
            for _ in range(3):
                before = now_ns(device)
                out = _run(node.target, args, kwargs)
                times.append(now_ns(device) - before)
            del out
        self._left -= time.perf_counter_ns() - begin
        return min(times), workspace

    def _meter(self, device: torch.device) -> Meter | None:
        """One that sees inside an op; None: there is none here."""
        if device not in self._meters:
            self._meters[device] = None
            with suppress(RepriseError):
                meter = open_meter(device)
                if meter.exact:
                    meter.start(0)
                    self._meters[device] = meter
        return self._meters[device]


class _NotRun(ValueError):
    """A call that cannot be made beforehand, with other values: its costs are estimated."""


def _run(do: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    try:
        return do(*args, **kwargs)
    except Exception as error:
        raise _NotRun(str(error)) from error


def _values(node: Any) -> Any:
    """Returns the arguments of a call, positional ones and others, with what nodes stand for."""

    def value(of: Any) -> Any:
        return of.meta.get("val") if isinstance(of, torch.fx.Node) else of

    return tree_map(value, (node.args, dict(node.kwargs)))


def _shape(value: Any) -> Any:
    """Returns the sizes and types of an argument of a call, or what it is if it is no tensor."""
    if isinstance(value, Tensor):
        sizes = tuple(hint(n) for n in value.size())
        return sizes, tuple(hint(n) for n in value.stride()), value.dtype, value.device
    return str(value)


def _real(value: Any) -> Any:
    """Returns an argument with real memory behind it."""
    if isinstance(value, Tensor):
        sizes, strides = [[hint(n) for n in of] for of in (value.size(), value.stride())]
        kind = {"dtype": value.dtype, "device": value.device}
        made = _run(torch.empty_strided, (sizes, strides), kind)
        return _run(made.fill_, (0.5 if value.is_floating_point() else 0,), {})
    if isinstance(value, torch.SymInt):
        return hint(value)
    return value
