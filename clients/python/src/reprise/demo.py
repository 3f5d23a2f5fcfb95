# SPDX-License-Identifier: Apache-2.0
"""Trains a network plainly and under a budget, and shows that the results are equal.

    python -m reprise.demo             # in an installation; scripts/demo builds a checkout first

Two processes run the same example with the same seed: the first without Reprise
(REPRISE_DISABLE=1), the second with `--budget`. The verdict combines what the
daemon recorded of the second with the losses of both. The daemon is the one of
this machine, or a private one, as for every job: its page stays.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reprise.agent import abi, bundled
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError, ServerUnavailable
from reprise.base.proto_json import Fields
from reprise.plan.server import Server

EXAMPLES = {"resnet": "train_resnet.py", "gpt": "train_gpt.py"}
EXIT_FAILED, EXIT_NO_PLAN, EXIT_UNREACHABLE = 1, 3, 4


def examples() -> Path:
    """Returns the folder of the example programs: the checkout's, or the one inside the package."""
    root = bundled.checkout()
    return (root if root is not None else Path(__file__).resolve().parent) / "examples"


def default_model() -> str:
    """Returns "resnet" if scikit-learn, which has its data, is installed; otherwise "gpt"."""
    return "resnet" if importlib.util.find_spec("sklearn") else "gpt"


def train(
    job: argparse.Namespace, label: str, environment: dict[str, str], *more: str
) -> list[str]:
    """Runs an example to its end; returns its losses as hex floats, which are exact. Raises
    RepriseError if the job fails."""
    script = examples() / EXAMPLES[job.model]
    command = [sys.executable, str(script), "--steps", str(job.steps), "--json", *more]
    for flag, value in (("--depth", job.depth), ("--batch", job.batch)):
        if value is not None:
            command += [flag, str(value)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    losses: list[str] = []
    live = sys.stderr.isatty()
    assert process.stdout is not None
    try:
        for line in process.stdout:
            record = json.loads(line)
            losses.append(record["loss"])
            loss = float.fromhex(record["loss"])
            text = f"demo: {label:<24} step {record['step']:>3} of {job.steps}  loss {loss:.4f}"
            if live:
                print(f"\r{text}", end="", file=sys.stderr, flush=True)
            elif record["step"] in (1, job.steps) or record["step"] % 10 == 0:
                print(text, file=sys.stderr, flush=True)
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        if live:
            print(file=sys.stderr)
    if code != 0:
        raise RepriseError(f"{label}: the job ended with exit code {code}")
    return losses


def wait_for_end(server: Server, run_id: str) -> dict[str, Any]:
    """Returns the recorded run, once everything that its job sent is stored. Raises RepriseError
    after 30 s."""
    deadline = time.monotonic() + 30
    while True:
        run = server.call("Query/GetRun", {"runId": run_id})
        if run.get("state") not in (None, "RUN_STATE_UNSPECIFIED", "RUN_STATE_RUNNING"):
            return run
        if time.monotonic() > deadline:
            raise RepriseError(f"run {run_id} did not end within 30 s of its job")
        time.sleep(0.1)


def verdict_json(run: dict[str, Any], same_losses: bool) -> dict[str, Any]:
    """Returns the object that `--json` prints. Proto3 JSON omits zeros and writes 64-bit integers
    as strings."""
    verdict = Fields(run.get("verdict", {}), "verdict")
    sizes = (
        *("base_peak_bytes", "budget_bytes", "predicted_peak_bytes", "measured_peak_bytes"),
        *("base_step_ns", "predicted_step_ns", "measured_step_ns"),
    )
    return {
        **{name: verdict.size(name) for name in sizes},
        "overhead_bound": verdict.number("overhead_bound"),
        "gradients_equal": verdict.flag("gradients_equal"),
        "values_equal": verdict.flag("values_equal"),
        "losses_equal": same_losses,
        "validated": verdict.flag("validated") and same_losses,
        "feasible": verdict.flag("feasible"),
        "plan_id": run.get("planId", ""),
        "run_id": run["runId"],
        "sentence": verdict.text("sentence"),
    }


def demonstrate(server: Server, job: argparse.Namespace) -> dict[str, Any]:
    """Runs the example plainly and planned; returns the verdict."""
    plain = train(job, "plain", {"REPRISE_DISABLE": "1"})
    run_id = str(uuid.uuid4())
    environment = {"REPRISE_RUN_ID": run_id, "REPRISE_AGENT": str(abi.load().path)}
    planned = train(job, f"budget {job.budget}", environment, "--budget", job.budget)
    result = verdict_json(wait_for_end(server, run_id), plain == planned)
    result["steps"] = job.steps
    return result


def print_verdict(result: dict[str, Any], server: Server) -> None:
    """Prints the verdict, and the address at which the run is seen."""
    print()
    print(result["sentence"])
    if not result["feasible"]:
        print("The job trained on without a plan.")
    elif result["losses_equal"]:
        print(f"All {result['steps']} losses are equal to those of the plain job, bit for bit.")
    else:
        print("The losses differ from those of the plain job.")
    print()
    # The token is printed on a terminal only, so that no log contains it.
    link = server.page(f"/runs/{result['run_id']}", with_token=sys.stdout.isatty())
    print(f"Dashboard: {link}", flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses and checks the options."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo" if bundled.checkout() else "python -m reprise.demo",
        description="Trains a network twice (plain, then under a budget of its own memory) and "
        "proves that the budget held and no gradient changed.",
        epilog="exit codes: 0 validated, 1 failed, 2 usage, 3 no plan fits, 4 no server",
    )
    parser.add_argument(
        "--model",
        choices=sorted(EXAMPLES),
        default=default_model(),
        help="resnet needs scikit-learn for its data (default here: %(default)s)",
    )
    parser.add_argument(
        "--budget",
        default="0.5x",
        help='"0.5x" of the dynamic memory, "600MiB", "600MB" or bytes (default: %(default)s)',
    )
    parser.add_argument("--depth", type=int, help="layers (default: the example's)")
    parser.add_argument("--batch", type=int, help="samples per step")
    parser.add_argument("--steps", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.model == "resnet" and default_model() != "resnet":
        parser.error("--model resnet: needs scikit-learn: pip install scikit-learn")
    for name in ("depth", "batch", "steps"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name}: must be positive, got {value}")
    try:
        options.budget = Budget(options.budget)
    except RepriseError as error:
        parser.error(f"--{error}")
    if options.steps < 8:
        parser.error(f"--steps: the first are measured unplanned; at least 8, got {options.steps}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns its exit code."""
    options = parse(arguments)
    try:
        server = Server.find()
        result = demonstrate(server, options)
        if options.json:
            print(json.dumps(result))
        else:
            print_verdict(result, server)
        if result["validated"]:
            return 0
        return EXIT_FAILED if result["feasible"] else EXIT_NO_PLAN
    except RepriseError as error:
        print(f"demo: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE if isinstance(error, ServerUnavailable) else EXIT_FAILED
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
