# SPDX-License-Identifier: Apache-2.0
"""Writes the step graph of every network of the zoo, for planner_passes.

    python bench/planner/capture_zoo.py --out FOLDER            # all 16
    python bench/planner/capture_zoo.py --out FOLDER gpt unet   # these

One step of each network of tests/python/pytorch/zoo.py is recorded on the CPU, with the times this
machine takes: two calls write graphs that differ a little.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "clients/python/src", ROOT / "tests/python/pytorch"):
    sys.path.insert(0, str(folder))


def recorded(name: str) -> dict[str, Any]:
    """The step graph of this network, as `reprise.graph/1`."""
    import torch
    from jobs import start_meter
    from zoo import ZOO

    from reprise.torch.capture.capture import Capture
    from reprise.torch.capture.step_graph import build
    from reprise.torch.meter.state import alive_tensors

    job = ZOO[name]()
    job.step(0)  # whatever is made once is there
    job.optimizer.zero_grad()
    capture = Capture(job.model, start_meter())
    try:
        capture.begin(alive_tensors(torch.device("cpu")), {})
        for micro in range(job.micro_batches):
            with (
                capture.region() as pin,
                torch.autocast("cpu", dtype=torch.bfloat16, enabled=job.autocast),
            ):
                loss = job.forward_loss(micro)
                pin(loss)
            loss.backward()
        capture.enter_optimizer()
        job.optimizer.step()
    except BaseException:
        capture.leave()
        raise
    step = capture.finish()
    graph = build(step, name=name, measured_peak_bytes=step.peak_bytes, measured_step_ns=0)
    return in_words(graph.message())


def in_words(message: dict[str, Any]) -> dict[str, Any]:
    """The same with kinds and phases as files have them."""
    for op in message["ops"]:
        op["kind"] = op["kind"].removeprefix("OP_KIND_").lower()
        op["phase"] = op["phase"].removeprefix("PHASE_").lower()
    return {"format": "reprise.graph/1", **message}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("networks", nargs="*", metavar="NAME")
    options = parser.parse_args()
    from zoo import ZOO

    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.networks or ZOO:
        message = recorded(name)
        (options.out / f"zoo_{name}.json").write_text(json.dumps(message))
        print(f"{name}: {len(message['ops'])} ops")


if __name__ == "__main__":
    main()
