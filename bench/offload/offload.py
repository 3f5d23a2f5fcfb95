# SPDX-License-Identifier: Apache-2.0
"""Plans that use host memory on the slow tier: peak and step time, predicted and measured, beside
recomputation alone and saved tensors on the host.

    python bench/offload/offload.py [--rates 300MB/s 1GB/s] [--budgets 0.3x 44MiB] [--out FILE.md]

A small GPT trains on the CPU, each way in a process of its own. `save_on_cpu` has the hooks of
torch.autograd.graph.save_on_cpu: every saved tensor is copied out when it is saved and back when it
is unpacked, and the program waits for each copy. It copies over the same link as the plans; torch's
own, on a CPU, would only copy within the memory that is counted. Peaks are those of the CPU's
allocator. The time of a step is the processor time of the thread that trains, and what it waits for
copies: other work on the machine changes that least. The least of the last steps counts, of several
rounds in which all ways take turns: a virtual machine's clock varies from minute to minute.
Predictions are made of what the ops took in the job, which other work makes longer, too. Losses and
weights of all ways must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "examples"))
MIB = 1 << 20
WIDTH, DEPTH, CONTEXT, BATCH = 192, 6, 256, 6
# The system's malloc keeps memory between steps, as the allocator of a GPU does: giving it back and
# faulting it in again takes a tenth of a step, or none, as its blocks happen to lie.
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


def one(way: str, budget: str, steps: int) -> dict[str, Any]:
    """Trains one way in this process; returns what was measured and predicted."""
    import time

    import torch
    from torch import nn
    from train_gpt import GPT

    from reprise.torch.meter.state import open_meter, start_counting

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(DEPTH, WIDTH, 4, CONTEXT, 0.0)
    optimizer = torch.optim.AdamW(model.parameters())
    meter = open_meter("cpu")
    start_counting(meter, torch.device("cpu"))
    if way in ("recompute", "offload"):
        import reprise

        host = "4GiB" if way == "offload" else 0
        reprise.auto(model, budget, host_budget=host, verify_every=0, first="plain")
    hooks = save_on_cpu(model) if way == "save_on_cpu" else None
    losses, peaks, times = [], [], []
    waited = count_waits()
    for _ in range(steps):
        tokens = torch.randint(0, 256, (BATCH, CONTEXT + 1))
        meter.reset_peak()
        begin = time.thread_time_ns() + waited[0]
        optimizer.zero_grad()
        if hooks is None:
            out = model(tokens[:, :-1])
        else:
            with torch.autograd.graph.saved_tensors_hooks(*hooks):
                out = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
        del out
        loss.backward()
        optimizer.step()
        times.append(time.thread_time_ns() + waited[0] - begin)
        peaks.append(meter.peak())
        losses.append(loss.item().hex())
    late = times[-steps // 2 :]
    found = {"losses": losses, "peak": max(peaks[-steps // 2 :]), "ns": min(late)}
    found["weights"] = [p.double().sum().item().hex() for p in model.parameters()]
    if way in ("recompute", "offload"):
        report = reprise.report(model)
        if not report.planned_steps:
            return {"refused": report.why or report.sentence}
        found |= {"added": report.predicted_step_ns / report.base_step_ns - 1}
        found |= {"host": report.host_bytes, "state": state_on_host(model)}
        found |= {"predicted_peak": report.predicted_peak_bytes, "sentence": report.sentence}
    return found


def state_on_host(model: Any) -> int:
    """Returns the bytes of optimizer state that steps of the model send to the host."""
    from reprise.torch.training import armed

    loop = armed.current(model)
    tapes = [handle.tape for handle in loop.handles] if loop is not None else []
    return sum(place.bytes for tape in tapes for place in tape.program.state.values())


def count_waits() -> list[int]:
    """Returns a list of one number: how long this process has waited for copies (ns)."""
    import time

    from reprise.torch.offload import slow_tier

    waited, wait = [0], slow_tier._Copy.wait

    def counted(copy: Any) -> None:
        begin = time.perf_counter_ns()
        wait(copy)
        waited[0] += time.perf_counter_ns() - begin

    slow_tier._Copy.wait = counted
    return waited


def save_on_cpu(model: Any) -> tuple[Any, Any]:
    """The hooks of torch.autograd.graph.save_on_cpu, over the slow tier; parameters stay."""
    import torch

    from reprise.torch.internals.outside import hide, host_buffer
    from reprise.torch.offload.tier import tier_of

    tier = tier_of(torch.device("cpu"))
    assert tier is not None
    stay = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() in stay or tensor.numel() < 1 << 14:
            return tensor
        flat = tensor.detach().contiguous().flatten().view(torch.uint8)
        host = hide(torch.frombuffer(host_buffer(flat.numel()), dtype=torch.uint8))
        tier.out(flat, host).wait()
        return host, tensor.dtype, tensor.size()

    def unpack(packed: Any) -> Any:
        if not isinstance(packed, tuple):
            return packed
        host, dtype, size = packed
        made = torch.empty(host.numel(), dtype=torch.uint8)
        tier.back(host, made).wait()
        return made.view(dtype).view(size)

    return pack, unpack


def run(way: str, rate: str, budget: str, steps: int) -> dict[str, Any]:
    """Trains in a process of its own."""
    command = [sys.executable, str(HERE), "--one", way, "--budget", budget, "--steps", str(steps)]
    done = subprocess.run(
        command,
        env={**os.environ, **KEPT, "REPRISE_SLOW_TIER": rate},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def row(rate: str, way: str, found: dict[str, Any], plain: dict[str, Any]) -> str:
    """One line of the table."""
    if "refused" in found:
        return f"| {rate} | {way} | {found['refused'].split(': op')[0]} |" + " |" * 7
    same = found["losses"] == plain["losses"] and found["weights"] == plain["weights"]
    predicted = found.get("added")
    base = plain["ns"]
    cells = [
        rate,
        way,
        f"{found['peak'] / MIB:.1f}",
        f"{found['predicted_peak'] / MIB:.1f}" if predicted is not None else "",
        f"{found['host'] / MIB:.1f}" if predicted is not None else "",
        f"{found['state'] / MIB:.1f}" if predicted is not None else "",
        f"{found['ns'] / 1e6:.0f} ms",
        "" if predicted is None else f"{predicted:+.1%}",
        f"{found['ns'] / base - 1:+.1%}",
        "equal" if same else "DIFFER",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", nargs="+", default=["300MB/s", "1GB/s"])
    parser.add_argument("--budget", default="0.3x", help=argparse.SUPPRESS)
    parser.add_argument("--budgets", nargs="+", default=["0.3x", "44MiB"])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(asked.one, asked.budget, asked.steps)))
        return
    ways = [("plain", "1GB/s", "0.3x")]
    ways += [("recompute", "1GB/s", budget) for budget in asked.budgets]
    for rate in asked.rates:
        ways += [("save_on_cpu", rate, "")]
        ways += [("offload", rate, budget) for budget in asked.budgets]
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    for _ in range(asked.rounds):
        for way in ways:
            found = run(*way, asked.steps)
            if found.get("ns", 0) <= best.get(way, found).get("ns", 0):
                best[way] = found
    names = {"recompute": "recompute alone, ", "save_on_cpu": "save_on_cpu", "offload": "plan, "}
    lines = [row("", "plain", best[ways[0]], best[ways[0]])]
    for way in ways[1:]:
        kind, rate, budget = way
        shown = "" if kind == "recompute" else rate
        lines.append(row(shown, names[kind] + budget, best[way], best[ways[0]]))
    import torch

    text = "\n".join(
        [
            "# Plans that use host memory, on the slow tier",
            "",
            f"{datetime.datetime.now(datetime.timezone.utc).date()}, torch {torch.__version__}, "
            f"one thread, {os.cpu_count()} cores of a virtual machine (load "
            f"{os.getloadavg()[0]:.1f} at the end). Not run on a GPU: the link is "
            "two threads that copy no faster than the rate, and no other memory is behind it.",
            "",
            "```",
            "python bench/offload/offload.py --rates "
            f"{' '.join(asked.rates)} --budgets {' '.join(asked.budgets)} --steps {asked.steps} "
            f"--rounds {asked.rounds}",
            "```",
            "",
            "The time of a step is processor time, and what it waits for copies: the least of "
            f"{asked.rounds} rounds in which all ways take turns.",
            "",
            f"A GPT of {DEPTH} blocks of width {WIDTH}, {BATCH} sequences of {CONTEXT} tokens.",
            "",
            "| link, each way | way | peak, MiB | predicted | on the host, MiB | of it optimizer "
            "state | step | added, predicted | measured | bits |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *lines,
            "",
        ]
    )
    if asked.out is not None:
        asked.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
