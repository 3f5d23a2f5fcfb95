# SPDX-License-Identifier: Apache-2.0
"""What the checks run: a transformer on the GPU, or the same calls without one.

Ops are reported by hooks of modules, forward and backward, as an adapter would.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

from reprise import abi


class Workload(Protocol):
    name: str

    def step(self) -> None: ...
    def synchronize(self) -> None: ...
    def timed_step(self) -> float:
        """Milliseconds on the device."""
        ...

    def free_bytes(self) -> int: ...


class Ops:
    """Op ids of this process, reported only while `on`."""

    def __init__(self, library: abi.Library) -> None:
        self.library = library
        self.on = False
        self.next = 1
        self.open: list[int] = []

    def begin(self, name: int) -> int:
        op, self.next = self.next, self.next + 1
        self.library.op_begin(op, name)
        return op

    def end(self, op: int) -> None:
        self.library.op_end(op)


class Torch:
    """8 layers of 1024 on the GPU; a step of some 20 ms."""

    name = "transformer, 8 x 1024, batch 16 x 256, fp32"

    def __init__(self, ops: Ops | None, compiled: bool = False) -> None:
        import torch

        self.torch = torch
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
        self.model = torch.nn.TransformerEncoder(layer, 8).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(16, 256, 1024, device="cuda")
        if ops is not None:
            self._hook(ops)
        self.call = torch.compile(self.model) if compiled else self.model

    def _hook(self, ops: Ops) -> None:
        stack: dict[tuple[int, bool], list[int]] = {}

        def before(key: tuple[int, bool], name: int) -> None:
            if ops.on:
                stack.setdefault(key, []).append(ops.begin(name))

        def after(key: tuple[int, bool]) -> None:
            if ops.on and stack.get(key):
                ops.end(stack[key].pop())

        for path, module in self.model.named_modules():
            if any(True for _ in module.children()):
                continue
            text = (path or "model").encode()
            name = int(ops.library.quick.reprise_intern(text, len(text)))
            forward, backward = (id(module), False), (id(module), True)
            module.register_forward_pre_hook(lambda *_, k=forward, n=name: before(k, n))
            module.register_forward_hook(lambda *_, k=forward: after(k))
            module.register_full_backward_pre_hook(lambda *_, k=backward, n=name: before(k, n))
            module.register_full_backward_hook(lambda *_, k=backward: after(k))

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.call(self.batch).square().mean().backward()
        self.optimizer.step()

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def timed_step(self) -> float:
        begin = self.torch.cuda.Event(enable_timing=True)
        end = self.torch.cuda.Event(enable_timing=True)
        begin.record()
        self.step()
        end.record()
        self.synchronize()
        return float(begin.elapsed_time(end))

    def free_bytes(self) -> int:
        return int(self.torch.cuda.mem_get_info()[0])


class Fake:
    """50 launches of a fake CUPTI: the checks themselves are what is tried."""

    name = "fake: no GPU, figures mean nothing"

    def __init__(self, ops: Ops | None, compiled: bool = False) -> None:
        self.ops = ops
        self.cupti = ctypes.CDLL(os.environ["REPRISE_CUPTI_PATH"])
        self.cupti.FakeCuptiHandle()
        self.cupti.FakeCuptiLaunch.argtypes = [ctypes.c_char_p, ctypes.c_uint64]

    def step(self) -> None:
        for index in range(50):
            op = self.ops.begin(0) if self.ops is not None and self.ops.on else None
            self.cupti.FakeCuptiLaunch(b"fake_kernel", 1000 + index)
            if op is not None and self.ops is not None:
                self.ops.end(op)

    def synchronize(self) -> None:
        pass

    def timed_step(self) -> float:
        begin = time.perf_counter_ns()
        self.step()
        return (time.perf_counter_ns() - begin) / 1e6

    def free_bytes(self) -> int:
        return 1 << 34


def start(sink: str | None) -> abi.Library:
    """The agent, its records going to `sink`, or nowhere."""
    library = abi.load()
    config = abi.Config(
        struct_size=ctypes.sizeof(abi.Config),
        abi=abi.ABI,
        ring_slots=1 << 20,
        sink_path=f"file:{sink}".encode() if sink else None,
    )
    library.blocking.reprise_start(ctypes.byref(config))
    return library


def caps(library: abi.Library) -> dict[str, Any]:
    found = abi.Caps(struct_size=ctypes.sizeof(abi.Caps))
    library.quick.reprise_capabilities(ctypes.byref(found))
    return {
        "cupti": found.cupti,
        "cupti_version": found.cupti_version,
        "driver_version": found.driver_version,
        "untimed": found.untimed,
        "cupti_dropped": found.cupti_dropped,
        "dropped": found.dropped,
        "device_bytes": found.cupti_device_bytes,
        "holder": found.holder.decode("utf-8", "replace"),
        "why": found.why.decode("utf-8", "replace"),
    }


def choose(fake: bool) -> Callable[..., Workload]:
    return Fake if fake else Torch
