# SPDX-License-Identifier: Apache-2.0
"""Trains a network plainly and under a budget, and shows that the results are equal.

    python -m reprise.demo             # in an installation; scripts/demo builds a checkout first

Two processes run the same example with the same seed: the first without Reprise
(REPRISE_DISABLE=1), the second with `--budget`. The verdict combines what the
daemon recorded of the second with the losses of both.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprise.agent import abi, bundled
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError, ServerUnavailable
from reprise.base.proto_json import Fields
from reprise.plan.server import Server as Api

EXAMPLES = {"resnet": "train_resnet.py", "gpt": "train_gpt.py"}
EXIT_FAILED, EXIT_USAGE, EXIT_NO_PLAN, EXIT_UNREACHABLE = 1, 2, 3, 4


class DemoError(Exception):
    """An error that ends the demo; `code` is the exit code."""

    def __init__(self, message: str, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Job:
    """One example and its options."""

    model: str
    steps: int
    depth: int | None
    batch: int | None

    def command(self, budget: str | None) -> list[str]:
        """Returns the command that runs the example with this budget."""
        script = examples() / EXAMPLES[self.model]
        command = [sys.executable, str(script), "--steps", str(self.steps), "--json"]
        for flag, value in (("--depth", self.depth), ("--batch", self.batch)):
            if value is not None:
                command += [flag, str(value)]
        if budget is not None:
            command += ["--budget", budget]
        return command


def say(text: str) -> None:
    """Prints a line of progress on standard error."""
    print(f"demo: {text}", file=sys.stderr, flush=True)


def examples() -> Path:
    """Returns the folder of the example programs: the checkout's, or the one inside the package."""
    root = bundled.checkout()
    return (root if root is not None else Path(__file__).resolve().parent) / "examples"


def state_folder() -> Path:
    """Returns the folder where the demo's daemon keeps its runs, so that the next demo shows them
    too."""
    root = bundled.checkout()
    if root is not None:
        return root / ".demo"
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "reprise-demo"


def default_model() -> str:
    """Returns "resnet" if scikit-learn, which has its data, is installed; otherwise "gpt"."""
    return "resnet" if importlib.util.find_spec("sklearn") else "gpt"


@dataclass(frozen=True)
class Server:
    """The address of the daemon, and the token that its page and API ask for."""

    url: str
    token: str


class Daemon:
    """A `reprised` of the demo's own, with a state folder and a socket with a short path."""

    def __init__(self, listen: str) -> None:
        binary = bundled.program("reprised")
        if binary is None:
            raise DemoError("there is no reprised here: run scripts/build, or install a wheel")
        state = state_folder()
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.runtime = Path(tempfile.mkdtemp(prefix="reprise-demo-"))
        self.socket = self.runtime / "agent.sock"
        self.log_path = self.runtime / "reprised.log"
        self._log = self.log_path.open("wb")
        self.process = subprocess.Popen(
            [binary, "--listen", listen, "--data-dir", state, "--agent-socket", self.socket],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,
        )

    def wait_until_ready(self) -> Server:
        """Waits until the daemon listens; returns its address and token. Raises DemoError if it
        does not."""
        ready = self.runtime / "server.json"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if ready.exists():
                said = json.loads(ready.read_text())
                return Server(said["url"], Path(said["token_file"]).read_text().strip())
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise DemoError(f"reprised did not start: {self.last_words()}", EXIT_UNREACHABLE)

    def last_words(self) -> str:
        """Returns the last line of the daemon's log."""
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def stop(self) -> None:
        """Stops the daemon and removes the folder of its socket."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()
        shutil.rmtree(self.runtime, ignore_errors=True)


def train(job: Job, label: str, budget: str | None, environment: dict[str, str]) -> list[str]:
    """Runs an example to its end; returns its losses as hex floats, which are exact. Raises
    DemoError if the job fails."""
    process = subprocess.Popen(
        job.command(budget),
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
        raise DemoError(f"{label}: the job ended with exit code {code}")
    return losses


def wait_for_end(server: Server, run_id: str) -> dict[str, Any]:
    """Returns the recorded run, once everything that its job sent is stored. Raises DemoError after
    30 s."""
    deadline = time.monotonic() + 30
    while True:
        run = Api(server.url, server.token).call("Query/GetRun", {"runId": run_id})
        if run.get("state") not in (None, "RUN_STATE_UNSPECIFIED", "RUN_STATE_RUNNING"):
            return run
        if time.monotonic() > deadline:
            raise DemoError(f"run {run_id} did not end within 30 s of its job")
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


def demonstrate(server: Server, daemon: Daemon, job: Job, budget: str) -> dict[str, Any]:
    """Runs the example plainly and planned; returns the verdict."""
    plain = train(job, "plain", None, {"REPRISE_DISABLE": "1"})
    run_id = str(uuid.uuid4())
    environment = {"REPRISE_SOCKET": str(daemon.socket), "REPRISE_RUN_ID": run_id}
    environment["REPRISE_AGENT"] = str(abi.load().path)
    planned = train(job, f"budget {budget}", budget, environment)
    result = verdict_json(wait_for_end(server, run_id), plain == planned)
    result["steps"] = job.steps
    return result


def print_verdict(result: dict[str, Any], server: Server, *, stays: bool) -> None:
    """Prints the verdict and where the run is seen: the address of the dashboard if the daemon
    `stays`, otherwise the command that shows it."""
    print()
    print(result["sentence"])
    if not result["feasible"]:
        print("The job trained on without a plan.")
    elif result["losses_equal"]:
        print(f"All {result['steps']} losses are equal to those of the plain job, bit for bit.")
    else:
        print("The losses differ from those of the plain job.")
    print()
    if not stays:
        print(f"The run is kept; this shows it: reprise serve --data-dir {state_folder()}")
        return
    # The token is printed on a terminal only, so that no log contains it.
    entry = f"?token={server.token}" if sys.stdout.isatty() else ""
    print(f"Dashboard: {server.url}/runs/{result['run_id']}{entry}", flush=True)


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
    parser.add_argument("--listen", help="HOST:PORT (default: 127.0.0.1:7070 or a free port)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-wait", action="store_true", help="stop the daemon afterwards")
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


def port_is_free(port: int) -> bool:
    """Returns whether a port of the local host is free."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns its exit code."""
    options = parse(arguments)
    # SIGTERM raises KeyboardInterrupt, as Ctrl-C does, until `sigwait` takes both.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    listen = options.listen or ("127.0.0.1:7070" if port_is_free(7070) else "127.0.0.1:0")
    job = Job(options.model, options.steps, options.depth, options.batch)
    daemon = None
    try:
        daemon = Daemon(listen)
        server = daemon.wait_until_ready()
        result = demonstrate(server, daemon, job, options.budget)
        if options.json:
            print(json.dumps(result), flush=True)
        else:
            print_verdict(result, server, stays=not options.no_wait)
        if not options.no_wait:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
            print("Press Ctrl-C to stop the daemon.", flush=True)
            signal.sigwait([signal.SIGINT, signal.SIGTERM])
        if result["validated"]:
            return 0
        return EXIT_FAILED if result["feasible"] else EXIT_NO_PLAN
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.code
    except RepriseError as error:
        print(f"demo: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE if isinstance(error, ServerUnavailable) else EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    finally:
        if daemon is not None:
            daemon.stop()


if __name__ == "__main__":
    sys.exit(main())
