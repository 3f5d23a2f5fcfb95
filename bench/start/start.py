# SPDX-License-Identifier: Apache-2.0
"""What a job pays until its first planned step has ended, beyond what it pays anyway.

    python bench/start/start.py --starts 3 --json start.jsonl

A residual network of 53 convolutions, as ResNet-50 has them, in processes of their own: with
Reprise until the first planned step has ended, and plainly for as many steps. CPU time of the
process, so that a busy machine matters little; the daemon's is its own and runs beside the job. The
first start begins with nothing on disk but the built libraries, the later ones find what it left.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MOST_STEPS = 24
_LEFT_OUT = ("XDG_", "PYTHONDONTWRITEBYTECODE")


def job(budget: str, steps: int, size: int, batch: int) -> dict[str, Any]:
    """In this process. Steps 0: until the first planned one."""
    begin = time.process_time()
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    imported = time.process_time()

    def normed(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
        )

    class Bottleneck(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.first = normed(inputs, width, 1)
            self.second = normed(width, width, 3, stride)
            self.third = normed(width, 4 * width, 1)
            same = stride == 1 and inputs == 4 * width
            self.short = nn.Identity() if same else normed(inputs, 4 * width, 1, stride)

        def forward(self, x: Tensor) -> Tensor:
            y = self.third(F.relu(self.second(F.relu(self.first(x)))))
            return F.relu(y + self.short(x))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[nn.Module] = [normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(inputs, 64 << stage, stride))
            inputs = 4 * (64 << stage)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))
    ready = time.process_time()
    report: Any = None
    if not steps:
        import reprise

        reprise.auto(model, budget=budget)
        report = lambda: reprise.report(model)  # noqa: E731
    armed = time.process_time()
    each = []
    planned = 0
    while len(each) < (steps or MOST_STEPS) and not planned:
        at = time.process_time()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        each.append(time.process_time() - at)
        planned = report().planned_steps if report is not None else 0
    return {
        "import_s": imported - begin,
        "auto_s": armed - ready,
        "steps_s": each,
        "cpu_s": time.process_time() - ready,
        "planned": planned,
        "sentence": report().sentence if report is not None else "",
    }


def prepared(folder: Path) -> None:
    """A cache with the built libraries and nothing else. The package's modules are compiled to
    bytecode, as an installed package's are."""
    compileall.compile_dir(ROOT / "clients" / "python" / "src", quiet=2)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    (folder / "cache" / "reprise").mkdir(mode=0o700, parents=True)
    for built in (Path(base) / "reprise").glob("*"):
        if built.name != "costs":
            (folder / "cache" / "reprise" / built.name).symlink_to(built)


def started(arguments: list[str], folder: str) -> dict[str, Any]:
    """The same in a process of its own."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(_LEFT_OUT)},
        "XDG_CACHE_HOME": f"{folder}/cache",
        "XDG_STATE_HOME": f"{folder}/state",
        "XDG_RUNTIME_DIR": folder,
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", default="0.75x")
    parser.add_argument("--size", type=int, default=96, help="of the images")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--job", type=int, help="steps; 0: until planned. Not to be given by hand")
    given = parser.parse_args()
    if given.job is not None:
        print(json.dumps(job(given.budget, given.job, given.size, given.batch)))
        return
    shape = [f"--size={given.size}", f"--batch={given.batch}", f"--budget={given.budget}"]
    rows = []
    with tempfile.TemporaryDirectory(prefix="rs", dir="/tmp") as folder:
        os.chmod(folder, 0o700)
        prepared(Path(folder))
        for number in range(given.starts):
            armed = started([*shape, "--job=0"], folder)
            if not armed["planned"]:
                sys.exit(f"no step was planned: {armed['sentence']}")
            count = len(armed["steps_s"])
            plain = started([*shape, f"--job={count}"], folder)
            row = {
                "start": number + 1,
                "steps": count,
                "beyond_s": armed["cpu_s"] - plain["cpu_s"],
                "plain_step_s": median(plain["steps_s"][1:]),
                "auto_s": armed["auto_s"],
                "steps_s": armed["steps_s"],
            }
            rows.append(row)
            print(
                f"start {row['start']}: {row['beyond_s']:.2f} CPU s beyond a plain run of {count} "
                f"steps of {row['plain_step_s']:.2f} s; auto {row['auto_s']:.2f} s, steps "
                + " ".join(f"{s:.2f}" for s in row["steps_s"]),
                flush=True,
            )
    if given.json:
        given.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))
    main()
