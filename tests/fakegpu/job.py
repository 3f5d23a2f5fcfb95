# SPDX-License-Identifier: Apache-2.0
"""One small training job on the fake GPU, plain or under a budget; ends with a line of JSON.

job.py --net gpt [--budget 0.5x]
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import torch
from torch import Tensor, nn

MIB = 1 << 20


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--net", choices=["mlp", "gpt", "attention", "resnet"], default="mlp")
    add("--depth", type=int, default=4)
    add("--width", type=int, default=64)
    add("--batch", type=int, default=4)
    add("--context", type=int, default=64)
    add("--dropout", type=float, default=0.0)
    add("--steps", type=int, default=12)
    add("--budget")
    add("--first")
    add("--host-budget", default="0")
    add("--amp", action="store_true", help="bfloat16 where autocast says so")
    add("--scaler", action="store_true")
    add("--clip", action="store_true")
    add("--accumulate", type=int, default=1)
    add("--streams", action="store_true", help="the batch comes pinned, over a side stream")
    add("--before", type=int, default=0, help="plain steps before the budget is asked for")
    add("--share", type=float, help="of the device, for this process")
    add("--device", default="cuda:0")
    add("--beside", type=int, default=0, help="MiB on cuda:0 that another part of the job holds")
    add("--graph", type=int, help="after so many steps a CUDA graph is captured and replayed")
    add("--eager", action="store_true", help="the same steps, with no graph captured")
    add("--graphed", choices=["step", "optimizer", "callable"], default="step")
    add("--compiled", help="by this backend of torch.compile")
    add("--strays", type=int, help="from this step on a layer runs on a side stream")
    add("--fills", type=int, nargs=2, help="in this step's backward only so many MiB are free")
    add("--benchmark", action="store_true", help="cuDNN tries its algorithms")
    add("--grows", type=int, default=0, help="from this step on the batch is twice as large")
    return parser.parse_args()


class Attention(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Mlp(nn.Module):
    def __init__(self, depth: int, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.dropout = dropout
        self.side: Any = None

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if self.side is None or number != len(self.layers) // 2:
                x = nn.functional.dropout(nn.functional.gelu(layer(x)), self.dropout)
                continue
            here = torch.cuda.current_stream()
            self.side.wait_stream(here)
            with torch.cuda.stream(self.side):
                x = nn.functional.dropout(nn.functional.gelu(layer(x)), self.dropout)
            here.wait_stream(self.side)
        return x


class Residual(nn.Module):
    """Convolutions and batch norms, each pair around a shortcut."""

    def __init__(self, depth: int, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            )
            for _ in range(depth)
        )
        self.last = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x.mean((2, 3)))


def model_of(asked: argparse.Namespace) -> nn.Module:
    if asked.net == "gpt":
        import train_gpt

        return train_gpt.GPT(asked.depth, asked.width, 4, asked.context, asked.dropout)
    if asked.net == "resnet":
        return Residual(asked.depth)
    if asked.net == "attention":
        return Attention(asked.depth, asked.width)
    return Mlp(asked.depth, asked.width, asked.dropout)


class Job:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        torch.manual_seed(0)
        self.device = torch.device(asked.device)
        torch.backends.cudnn.benchmark = asked.benchmark
        if asked.share:
            torch.cuda.set_per_process_memory_fraction(asked.share)
        self.filled = ctypes.c_void_p()
        self.beside = torch.empty(asked.beside * MIB, dtype=torch.uint8, device="cuda:0")
        self.model = model_of(asked).to(self.device).train()
        inside = asked.graphed == "optimizer"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, capturable=inside)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.callable: Any = None
        self.scaler = torch.amp.GradScaler("cuda", enabled=asked.scaler)
        self.side = torch.cuda.Stream() if asked.streams or asked.strays is not None else None
        generator = torch.Generator().manual_seed(1)
        rows, n = asked.batch, asked.context
        self.tokens = torch.randint(0, 256, (8, rows, n + 1), generator=generator)
        self.images = torch.randn(8, 2 * rows, 3, 32, 32, generator=generator)
        self.vectors = torch.randn(8, rows, asked.width, generator=generator)

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        tokens = self.tokens[number % 8]
        if self.asked.net == "resnet":
            pair = (self.images[number % 8], tokens[:, :2].flatten() % 10)
            if not self.asked.grows or number < self.asked.grows:
                pair = (pair[0][: self.asked.batch], pair[1][: self.asked.batch])
        elif self.asked.net == "mlp":
            pair = (self.vectors[number % 8], self.vectors[number % 8])
        else:
            pair = (tokens[:, :-1], tokens[:, 1:])
        if not self.asked.streams:
            return pair[0].to(self.device), pair[1].to(self.device)
        here = torch.cuda.current_stream()
        with torch.cuda.stream(self.side):
            there = [one.pin_memory().to(self.device, non_blocking=True) for one in pair]
        here.wait_stream(self.side)
        for one in there:
            one.record_stream(here)
        return there[0], there[1]

    def step(self, number: int) -> None:
        asked = self.asked
        self.optimizer.zero_grad(set_to_none=True)
        for part in range(asked.accumulate):
            x, y = self.batch(number * asked.accumulate + part)
            out = self.forward(x)
            if asked.fills and number == asked.fills[0]:
                out.register_hook(lambda _: self.fill(asked.fills[1]))
            self.backward(out, y)
            del out
        if asked.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.asked.amp):
            return (self.callable or self.model)(x)

    def backward(self, out: Tensor, y: Tensor) -> None:
        if self.asked.net == "mlp":
            loss = nn.functional.mse_loss(out.float(), y)
        else:
            loss = nn.functional.cross_entropy(out.float().flatten(0, -2), y.flatten())
        self.scaler.scale(loss / self.asked.accumulate).backward()

    def fill(self, left: int) -> None:
        """Takes what is free on the device but for `left` MiB, as another process would, until
        memory has run out."""
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        count = ctypes.c_size_t(free - left * MIB)
        ctypes.CDLL(None).cudaMalloc(ctypes.byref(self.filled), count)
        torch._C._cuda_attach_out_of_memory_observer(lambda *_: self.give_back())

    def give_back(self) -> None:
        ctypes.CDLL(None).cudaFree(self.filled)
        self.filled = ctypes.c_void_p()

    def capture(self) -> None:
        """As torch's documentation does it: of the step with or without its optimizer, or of the
        model's forward and its backward."""
        asked, many = self.asked, range(self.asked.accumulate)
        self.static = [tuple(one.clone() for one in self.batch(part)) for part in many]
        self.optimizer.zero_grad(set_to_none=True)
        if asked.graphed == "callable":
            before = torch.cuda.get_rng_state()
            x = self.static[0][0].clone()
            self.callable = torch.cuda.make_graphed_callables(self.model, (x,))
            torch.cuda.set_rng_state(before)  # it warms up
            return
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for x, y in self.static:
                self.backward(self.forward(x), y)
            if asked.graphed == "optimizer":
                self.optimizer.step()

    def replay(self, number: int) -> None:
        assert self.graph is not None
        for part, pair in enumerate(self.static):
            for there, value in zip(
                pair, self.batch(number * self.asked.accumulate + part), strict=True
            ):
                there.copy_(value)
        self.graph.replay()
        if self.asked.graphed != "optimizer":
            self.optimizer.step()


def digest(model: nn.Module) -> str:
    """Of everything that it has learned, and of the generator that it drew from."""
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    sha.update(torch.cuda.get_rng_state().numpy().tobytes())
    return sha.hexdigest()[:16]


def main() -> None:
    asked, fake = parsed(), ctypes.CDLL(None)
    fake.fakegpu_counts.restype = ctypes.c_char_p
    fake.fakegpu_pinned.restype = ctypes.c_size_t
    job = Job(asked)
    for number in range(asked.before):
        job.step(number)
    session: Any = None
    if asked.compiled:
        job.model = torch.compile(job.model, backend=asked.compiled)
    if asked.budget:
        import reprise
        from reprise.torch.training import armed

        how = {"first": asked.first, "host_budget": asked.host_budget}
        job.model = reprise.auto(job.model, asked.budget, verify_every=4, **how)
        session = armed.current(job.model)
    # Calls that wait, in planned steps that are neither traced nor checked.
    waits: dict[str, int] = {}
    steps = unplanned = planned = checks = 0
    for number in range(asked.steps):
        if number == asked.strays:
            job.model.side = job.side
        torch.cuda.reset_peak_memory_stats(job.device)
        fake.fakegpu_reset_counts()
        if number == asked.graph and not asked.eager:
            job.capture()
            fake.fakegpu_reset_counts()
        (job.step if job.graph is None else job.replay)(number)
        job.give_back()
        called = dict(
            line.rsplit("=", 1) for line in fake.fakegpu_counts().decode().strip().split("\n")
        )
        waited = {name: int(n) for name, n in called.items() if "Synchronize" in name}
        measured = session.job.measured if session is not None else None
        checked = session.job.record.verdict().checks if session is not None else 0
        quiet = not asked.budget or (
            session is not None
            and session.job.step.run is None
            and measured.planned_steps not in (0, planned)
            and checked == checks
            # Nor one whose values are compared again, which counts no check.
            and session.parts.checks._since in (2, 3)
            and not session.job.step.tracing.on
        )
        if measured is not None:
            unplanned += measured.planned_steps == planned
            planned, checks = measured.planned_steps, checked
        if quiet and number > 0:
            steps += 1
            for name, n in waited.items():
                waits[name] = max(waits.get(name, 0), n)
    found: dict[str, Any] = {
        "weights": digest(job.model),
        "finite": all(one.isfinite().all().item() for one in job.model.state_dict().values()),
        "quiet_steps": steps,
        "waits": waits,
        "pinned": fake.fakegpu_pinned(),
        "meter": session.job.meter.exact if session is not None else None,
        "requested": torch.cuda.max_memory_allocated(job.device),
    }
    if asked.budget:
        report = reprise.report(job.model)
        found |= {
            "stage": report.stage,
            "why": report.why,
            "base": report.base_peak_bytes,
            "budget": report.budget_bytes,
            "predicted": report.predicted_peak_bytes,
            "measured": report.measured_peak_bytes,
            "checks": report.checks,
            "failed": report.failed_checks,
            "over": report.over_budget_steps,
            "mismatched": report.mismatched_steps,
            "on_host": report.host_bytes,
            "unplanned": unplanned,
        }
    print("\n" + json.dumps(found), flush=True)


main()
