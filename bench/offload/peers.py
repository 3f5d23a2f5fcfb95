# SPDX-License-Identifier: Apache-2.0
"""Plans that use host memory beside what others do with saved tensors, on the fake GPU.

    scripts/test fakegpu --torch 2.11.0 mlp      # makes the environment
    .venv-fakegpu-2.11.0/bin/pip install trl==1.16.0 transformers==5.23.0 accelerate==1.15.0
    .venv-fakegpu-2.11.0/bin/python bench/offload/peers.py [--out FILE.md]

A small Llama of transformers trains each way in a process of its own:

| way | |
|---|---|
| save_on_cpu | torch.autograd.graph.save_on_cpu(pin_memory=True) around the forward |
| TRL | the context of its trainers for `activation_offloading=True` |
| transformers | `activation_checkpointing_enable(offload=True)`: inputs of layers on the host |

Then Reprise trains it with each of these peaks as the budget, rounded up to a tenth of a MiB. Peaks
are bytes asked of torch's allocator, the largest of all steps; of a plan, of those that it ran. The
fake shows no time: what a plan adds is what it announces for the link that it has measured, between
two places of the same memory.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
MIB = 1 << 20
STEPS = 14
WAYS = ("save_on_cpu", "TRL", "transformers")


def one(way: str, budget: str) -> dict[str, Any]:
    """Trains one way in this process; returns what was measured and announced."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=704,
        vocab_size=512,
        max_position_embeddings=256,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    around: Any = contextlib.nullcontext()
    if way == "save_on_cpu":
        around = torch.autograd.graph.save_on_cpu(pin_memory=True)
    elif way == "TRL":
        from trl.models.activation_offloading import get_act_offloading_ctx_manager

        around = get_act_offloading_ctx_manager(model)
    elif way == "transformers":
        model.activation_checkpointing_enable(offload=True)
    elif way == "plan":
        import reprise

        reprise.auto(model, budget, host_budget="2GiB")
    generator = torch.Generator().manual_seed(1)
    peaks = []
    for _ in range(STEPS):
        tokens = torch.randint(0, 512, (8, 256), generator=generator).cuda()
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        with around:
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        peaks.append(torch.cuda.memory_stats()["requested_bytes.all.peak"])
    found: dict[str, Any] = {"peak": max(peaks), "weights": digest(model)}
    if way == "plan":
        report = reprise.report(model)
        found |= {"stage": report.stage, "validated": report.validated, "why": report.why}
        found |= {"host": report.host_bytes, "sentence": report.sentence}
        if report.planned_steps:
            found["peak"] = report.measured_peak_bytes
            found["added"] = report.predicted_step_ns / report.base_step_ns - 1
    return found


def fake_gpu() -> dict[str, str]:
    """Returns the variables of processes on the fake GPU of this environment."""
    folder = Path(sys.prefix)
    try:
        words = (folder / "env.sh").read_text().split()
    except OSError as error:
        sys.exit(f"{error}: {folder} is no environment of scripts/test fakegpu")
    found = dict(word.split("=", 1) for word in words if "=" in word)
    sources = HERE.parents[2] / "clients/python/src"
    return {"PYTHONPATH": str(sources), "FAKEGPU_WORK": "latest"} | found


def digest(model: Any) -> str:
    """Returns the SHA-256 of all weights, in hex."""
    sha = hashlib.sha256()
    for weight in model.parameters():
        sha.update(weight.detach().cpu().numpy().tobytes())
    return sha.hexdigest()


def run(way: str, budget: str = "") -> dict[str, Any]:
    """Trains in a process of its own."""
    command = [sys.executable, str(HERE), "--one", way, "--budget", budget]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{way}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def mib(count: int) -> str:
    return f"{count / MIB:.2f}"


def table() -> str:
    """Runs all ways; returns the report."""
    import torch

    plain = run("plain")
    lines = [
        "# Saved tensors on the host: plans beside what others do",
        "",
        f"{datetime.date.today()}, torch {torch.__version__} on a fake GPU; not run on a GPU. "
        "Peaks in MiB, of the bytes asked of torch's allocator.",
        "",
        "```",
        "python bench/offload/peers.py",
        "```",
        "",
        f"A Llama of 8 layers of width 256, 8 sequences of 256 tokens; plain: "
        f"{mib(plain['peak'])} MiB. What a plan adds is announced, not measured: the fake shows no "
        "time.",
        "",
        row(["way", "peak", "the plan's budget", "its peak", "on the host", "added", "bits"]),
        row(["---"] * 7),
    ]
    for way in WAYS:
        peer = run(way)
        budget = math.ceil(peer["peak"] / MIB * 10) / 10
        ours = run("plan", f"{budget:.1f}MiB")
        equal = {peer["weights"], ours["weights"]} == {plain["weights"]}
        planned = "added" in ours
        lines.append(
            row(
                [
                    way,
                    mib(peer["peak"]),
                    f"{budget:.1f}",
                    mib(ours["peak"]) if planned else ours["why"],
                    mib(ours["host"]) if planned else "",
                    f"{ours['added']:+.1%}" if planned else "",
                    "equal" if equal else "**differ**",
                ]
            )
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--budget", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="file of the report; without it: printed")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(asked.one, asked.budget)))
        return
    os.environ |= fake_gpu()
    report = table()
    if asked.out is None:
        print(report, end="")
    else:
        asked.out.write_text(report)


if __name__ == "__main__":
    main()
