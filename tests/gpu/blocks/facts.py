# SPDX-License-Identifier: Apache-2.0
"""What machine this is, what Reprise's doctor says of it, and what it can do at most."""

from __future__ import annotations

import os
import subprocess
import time

import kit
import torch
import training
from runner import Block, Here, Row, Skip
from sizes import sizes


def doctor(here: Here) -> None:
    """The sentences of `reprise doctor`, each beside its finding."""
    run = subprocess.run([kit.command(), "doctor"], capture_output=True, text=True,
                         timeout=60, check=False)  # fmt: skip
    here.say(exit=run.returncode, says=run.stdout[-6000:] + run.stderr[-500:])


def versions(here: Here) -> None:
    """What torch was built with, and the device as torch sees it."""
    of = torch.cuda.get_device_properties(0)
    here.say(
        torch=torch.__version__,
        git=str(torch.version.git_version)[:12],
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version(),
        device=of.name,
        capability=f"{of.major}.{of.minor}",
        device_bytes=of.total_memory,
    )
    from reprise.torch.compiled import fast
    from reprise.torch.meter import probe

    # Compiled before, against the same build of torch: else plans run in Python at first.
    here.say(
        engine=str(fast.FAST.prebuilt() is not None), probe=str(probe.PROBE.prebuilt() is not None)
    )


def ceilings(here: Here) -> None:
    """Bytes a second of a copy, products a second in three types, and the host's time of an op."""
    size = sizes(here.rehearsal)
    source = torch.empty(size.copy_bytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    ms = training.median_ms(lambda: target.copy_(source), 10)
    here.say(copy_gb_s=2 * source.numel() / ms / 1e6)
    n = size.matmul
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        a = torch.randn(n, n, device="cuda").to(dtype)
        a @ a
        here.say(**{f"{name}_tflop_s": 2 * n**3 / training.median_ms(lambda a=a: a @ a, 5) / 1e9})
    small = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(5000):
        small.add_(1)
    host = time.perf_counter() - began
    torch.cuda.synchronize()
    here.say(host_us_an_op=host / 5000 * 1e6)
    began = time.perf_counter()
    for _ in range(2000):
        torch.empty(512, device="cuda")
    here.say(host_us_an_allocation=(time.perf_counter() - began) / 2000 * 1e6)


def smi(here: Here) -> None:
    """The table of nvidia-smi."""
    if here.rehearsal:
        raise Skip("nvidia-smi is the driver's; the fake device has none")
    run = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=20, check=False)
    here.say(says=run.stdout[-3000:], load=os.getloadavg()[0])


FACTS = Block(
    "facts", "Which machine is it, and what can it do at most?", 30.0,
    (Row("versions", versions, 40), Row("nvidia-smi", smi, 20), Row("doctor", doctor, 60),
     Row("ceilings", ceilings, 30)),
)  # fmt: skip
