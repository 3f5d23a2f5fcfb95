# SPDX-License-Identifier: Apache-2.0
"""The largest size by `reprise.fit`, against the one that trains.

    python bench/start/fit.py [--json fit.jsonl] [CASE ...]

Twenty networks, most of them of the zoo (tests/python/pytorch/zoo.py), each in a process of its
own. The budget is half as much again as a step of a small size takes. What trains without a plan is
found by trial: two steps at each size, whose peaks are those of torch's allocator. With a plan, the
size that `fit` names trains under the budget, and so do one and two more, until one has no plan or
peaks above the budget.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python/pytorch"))
MORE = 0.5  # of a small step's peak, in the budget
STEPS = 8  # under a plan, the first one among them


class Case(NamedTuple):
    """One network, and steps of every size."""

    model: Callable[[], Any]
    batch: Callable[[int], tuple[Any, ...]]
    loss: Callable[..., Any]
    optimizer: Callable[[Any], Any]
    small: int = 4


def cases() -> dict[str, Case]:
    """Returns the networks by name. A name that ends with a word after a slash says what grows, if
    that is not the number of samples."""
    import torch
    import zoo
    from torch import nn
    from torch.nn import functional as F

    def classes(model: Any, *inputs: Any) -> Any:
        *rest, labels = inputs
        return F.cross_entropy(model(*rest), labels)

    def words(model: Any, tokens: Any) -> Any:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def images(*shape: int, format: Any = torch.contiguous_format) -> Any:
        return lambda n: (
            torch.randn(n, *shape).to(memory_format=format),
            torch.randint(0, 10, (n,)),
        )

    def text(vocabulary: int, length: int) -> Any:
        return lambda n: (torch.randint(0, vocabulary, (n, length + 1)),)

    def sgd(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    def adam(parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=1e-3)

    def noised(model: Any, clean: Any, noise: Any, when: Any) -> Any:
        level = when[:, None, None, None]
        return F.mse_loss(model(clean * (1 - level) + noise * level, when * 1000), noise)

    def halves(of: Callable[..., Any]) -> Callable[..., Any]:
        def loss(model: Any, *inputs: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return of(model, *inputs)

        return loss

    def mlp() -> Any:
        layers = [m for _ in range(8) for m in (nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128))]
        return nn.Sequential(*layers, nn.Linear(128, 10))

    def encoder_layers() -> Any:
        layers = [
            nn.TransformerEncoderLayer(64, 4, 256, 0.1, "gelu", batch_first=True, norm_first=True)
            for _ in range(3)
        ]
        return nn.Sequential(nn.Embedding(128, 64), *layers, nn.Linear(64, 128))

    def autoencoder() -> Any:
        widths = (3, 16, 32, 64)
        down = [nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(widths)]
        up = [
            nn.ConvTranspose2d(b, a, 4, 2, 1) for a, b in reversed(list(itertools.pairwise(widths)))
        ]
        return nn.Sequential(*(part for layer in (*down, *up) for part in (layer, nn.SiLU())))

    def likeness(model: Any, x: Any, _: Any) -> Any:
        return F.smooth_l1_loss(model(x), x)

    gpt = Case(zoo.GPT, text(128, 64), words, adam)
    resnet = Case(zoo.ResNet, images(3, 64, 64), classes, sgd)
    unet = Case(
        zoo.UNet,
        lambda n: (torch.randn(n, 3, 48, 48), torch.randint(0, 2, (n, 48, 48))),
        classes,
        sgd,
    )
    blocks_last = torch.channels_last
    return {
        "resnet": resnet,
        "resnet/pixels": resnet._replace(
            batch=lambda n: (torch.randn(4, 3, 8 * n, 8 * n), torch.randint(0, 10, (4,))), small=8
        ),
        "resnet-adam": resnet._replace(optimizer=adam),
        "vgg": Case(zoo.VGG, images(3, 32, 32), classes, sgd, small=16),
        "unet": unet,
        "densenet": Case(zoo.DenseNet, images(3, 32, 32), classes, sgd),
        "lstm-cell": Case(zoo.CellLSTM, text(64, 24), words, adam, small=16),
        "lstm-cell/steps": Case(
            zoo.CellLSTM, lambda n: (torch.randint(0, 64, (64, n + 1)),), words, adam, small=8
        ),
        "gpt": gpt,
        "encoder/tokens": gpt._replace(
            model=encoder_layers,
            batch=lambda n: (torch.randint(0, 128, (8, n + 1)),),
            small=32,
        ),
        "gpt-wide": gpt._replace(model=lambda: zoo.GPT(3, 128)),
        "vit": Case(zoo.ViT, images(3, 32, 32), classes, adam),
        "diffusion": Case(
            zoo.DiffusionUNet,
            lambda n: (torch.randn(n, 3, 32, 32), torch.randn(n, 3, 32, 32), torch.rand(n)),
            noised,
            adam,
        ),
        "channels-last": Case(
            lambda: zoo.ResNet().to(memory_format=blocks_last),
            images(3, 64, 64, format=blocks_last),
            classes,
            sgd,
        ),
        "shared-weights": gpt._replace(model=lambda: zoo.GPT(6, shared=3)),
        "custom-function": Case(zoo.CustomNet, images(3, 32, 32), classes, sgd),
        "autocast": gpt._replace(model=lambda: zoo.GPT(3), loss=halves(words)),
        "autocast-conv": resnet._replace(loss=halves(classes)),
        "mlp": Case(mlp, images(128), classes, adam, small=64),
        "autoencoder": Case(autoencoder, images(3, 64, 64), likeness, adam),
    }


def one(name: str) -> dict[str, Any]:
    """Compares one case in this process."""
    import torch

    import reprise

    torch.set_num_threads(1)
    case = cases()[name]
    budget = int((1 + MORE) * peak(case, case.small))
    begin = time.process_time()
    found = reprise.fit(
        case.model().train(), case.loss, case.batch, budget=budget, optimizer=case.optimizer
    )
    took = time.process_time() - begin
    good, bad = found.plain, found.plain + 1
    while good and peak(case, good) > budget:
        good, bad = good - 1, good
    while peak(case, bad) <= budget:
        good, bad = bad, bad + 1
    trains = found.planned
    if not trained(case, trains, budget):
        trains = next((n for n in range(trains - 1, good, -1) if trained(case, n, budget)), good)
    else:
        while trains < found.planned + 2 and trained(case, trains + 1, budget):
            trains += 1
    return {
        "case": name,
        "budget": budget,
        "plain": found.plain,
        "plain_trains": good,
        "planned": found.planned,
        "planned_trains": trains,
        "cpu_s": took,
    }


def peak(case: Case, size: int) -> int:
    """Returns the highest peak of two steps without a plan, in bytes."""
    import torch

    from reprise.torch.meter.state import open_meter, start_counting

    torch.manual_seed(0)
    model = case.model().train()
    optimizer = case.optimizer(model.parameters())
    inputs = case.batch(size)
    meter = open_meter(torch.device("cpu"))
    assert meter.exact, meter.why
    start_counting(meter, torch.device("cpu"))
    for _ in range(2):
        optimizer.zero_grad()
        case.loss(model, *inputs).backward()
        optimizer.step()
    highest = meter.peak()
    meter.stop()
    return highest


def trained(case: Case, size: int, budget: int) -> bool:
    """Returns whether a job of this size trains under the budget, and no step is above it."""
    import torch

    import reprise
    from reprise.torch.session.session import Session
    from reprise.torch.training import armed

    torch.manual_seed(0)
    model = case.model().train()
    optimizer = case.optimizer(model.parameters())
    reprise.auto(model, budget=budget)
    session = armed.current(model)
    assert isinstance(session, Session)
    inputs = case.batch(size)
    highest = 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        case.loss(model, *inputs).backward()
        optimizer.step()
        highest = max(highest, session.job.step.peak, session.job.meter.peak())
    report = reprise.report(model)
    reprise.remove(model)
    return report.stage == "training under a plan" and highest <= budget


def rows(script: str, names: Iterable[str], *more: str) -> Iterator[dict[str, Any]]:
    """Yields what `--one` of a script prints of each case, in a process of its own; prints the
    error of one that fails."""
    for name in names:
        line = [sys.executable, script, "--one", name, *more]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            print(f"| {name} | {done.stderr.strip().splitlines()[-1][:160]} |", flush=True)
        else:
            yield json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Every case, and the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help="not to be given by hand")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one)))
        return
    print("| network | budget | plain: fit, trains | planned: fit, trains | fit, CPU s |")
    print("|---|---|---|---|---|")
    found = []
    for row in rows(__file__, args.cases or cases()):
        found.append(row)
        print(
            f"| {row['case']} | {row['budget'] / 1e6:.1f} MB | "
            f"{row['plain']}, {row['plain_trains']} | "
            f"{row['planned']}, {row['planned_trains']} | {row['cpu_s']:.1f} |",
            flush=True,
        )
    if args.json:
        args.json.write_text("".join(json.dumps(row) + "\n" for row in found))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))
    main()
