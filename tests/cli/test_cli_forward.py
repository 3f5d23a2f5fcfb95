# SPDX-License-Identifier: Apache-2.0
"""A daemon that forwards to a central one over mTLS, as programs of their own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from authority import Authority
from cli_program import Reprise
from serving import until

TOKEN = "0123456789abcdef0123456789abcdef"
PLENTY = 120.0


@dataclass
class Serving:
    """`reprise serve` in a world of its own, which can be killed and started again."""

    reprise: Reprise
    flags: list[str]
    folder: Path
    process: subprocess.Popen[str] | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.folder / "serve.log"

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [self.reprise.program, "serve", *self.flags],
                env=self.reprise.environment, cwd=self.reprise.folder, stdout=log, stderr=log,
                text=True,
            )  # fmt: skip
        until("the server listens", PLENTY, (self.folder / "server.json").exists)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        (self.folder / "server.json").unlink()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(timeout=60) == 0, self.log.read_text()

    @property
    def address(self) -> str:
        return str(json.loads((self.folder / "server.json").read_text())["listen"])


class World:
    """A centre, and what a machine's daemon needs to get to it."""

    def __init__(self, program: Reprise, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.authority = Authority(folder / "authority")
        self.token = folder / "token"
        self.token.write_text(TOKEN + "\n")
        self.token.chmod(0o600)
        self.started: list[Serving] = []
        certificate, key = self.authority.sign("centre", "IP:127.0.0.1,DNS:localhost")
        self.client = self.authority.sign("machine", "DNS:machine")
        self.centre = self.serve(
            "c", "--listen", "127.0.0.1:0", "--token-file", self.token, "--tls-cert", certificate,
            "--tls-key", key, "--client-ca", self.authority.certificate,
        )  # fmt: skip
        self.centre.start()
        # It comes back to the same port.
        self.target = self.centre.address
        self.centre.flags[1] = self.target

    def serve(self, name: str, *flags: str | Path) -> Serving:
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        environment = self.program.environment | {
            "XDG_RUNTIME_DIR": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "REPRISE_SOCKET": str(folder / "agent.sock"),
        }
        reprise = Reprise(self.program.program, self.program.folder, environment)
        self.started.append(Serving(reprise, [*map(str, flags)], folder))
        return self.started[-1]

    def machine(self, name: str, **changed: str | Path) -> Serving:
        """A daemon that forwards; `changed` are flags with other values, "" leaves one out."""
        flags = {
            "to": self.target, "token-file": self.token, "ca": self.authority.certificate,
            "cert": self.client[0], "key": self.client[1],
        } | {flag.replace("_", "-"): value for flag, value in changed.items()}  # fmt: skip
        words = [w for flag, v in flags.items() if v for w in (f"--forward-{flag}", str(v))]
        serving = self.serve(name, "--listen", "127.0.0.1:0", *words)
        serving.start()
        return serving

    def at_the_centre(self, *words: str) -> str:
        done = self.centre.reprise(
            *words, "--json", "--server", f"https://{self.target}", "--token-file",
            str(self.token), "--ca", str(self.authority.certificate), "--cert",
            str(self.client[0]), "--key", str(self.client[1]),
        )  # fmt: skip
        assert done.code == 0, done.err
        return done.out


@pytest.fixture
def world(reprise: Reprise, tmp_path: Path) -> Iterator[World]:
    world = World(reprise, tmp_path)
    yield world
    for serving in reversed(world.started):
        serving.close()


def trouble(machine: Serving) -> str:
    status = machine.reprise("status", "--json")
    assert status.code == 0, status.err
    return str(json.loads(status.out)["forward"]["trouble"])


def test_what_is_imported_on_a_machine_is_at_the_centre_whoever_is_killed(
    world: World, graph_file: Path
) -> None:
    machine = world.machine("m")

    def runs(at_least: int) -> bool:
        return int(json.loads(world.at_the_centre("status"))["runs"]) >= at_least

    assert machine.reprise("import", str(graph_file)).code == 0
    until("the centre has the run", PLENTY, lambda: runs(1))

    world.centre.kill()
    assert machine.reprise("import", str(graph_file)).code == 0
    until("the machine says that it waits", PLENTY, lambda: "cannot be reached" in trouble(machine))
    assert "centre " + world.target in machine.reprise("status").out
    machine.kill()
    world.centre.start()
    machine.start()

    until("the centre has the other run", PLENTY, lambda: runs(2))
    assert int(json.loads(world.at_the_centre("status"))["runs"]) == 2
    until(
        "the machine knows it", PLENTY, lambda: "it has everything" in machine.reprise("status").out
    )


def test_who_is_not_let_in_says_why(world: World, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    wrong = tmp_path / "wrong"
    wrong.write_text("fedcba9876543210fedcba9876543210\n")
    stranger = other.sign("stranger", "DNS:machine")
    for name, said, changed in (
        ("t", f"the token in {wrong} is not the centre's", {"token_file": wrong}),
        ("u", f"not of {other.certificate}", {"ca": other.certificate}),
        ("v", "does not know the CA of --forward-cert", {"cert": stranger[0], "key": stranger[1]}),
        ("w", "asks for a certificate (--forward-cert)", {"cert": "", "key": ""}),
    ):
        machine = world.machine(name, **changed)
        until(f"{name} says why", PLENTY, lambda m=machine: trouble(m))  # type: ignore[misc]
        assert trouble(machine).startswith(f"centre {world.target}: ")
        assert said in trouble(machine)
        assert TOKEN not in machine.log.read_text()
    assert int(json.loads(world.at_the_centre("status"))["runs"]) == 0


def test_flags_that_cannot_work_are_refused_in_one_sentence(
    reprise: Reprise, tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("word\n")
    authority = Authority(tmp_path / "authority")
    certificate, _ = map(str, authority.sign("one", "DNS:one"))
    _, other_key = map(str, authority.sign("two", "DNS:two"))
    ca, token = str(authority.certificate), ["--forward-token-file", str(text)]
    far = ["--forward-to", "central.example.org:7443"]
    for flags, code, said in (
        ([*far, *token], 2, "needs --forward-ca"),
        ([*far, "--forward-ca", ca], 2, "name a file with it in --forward-token-file"),
        (token, 2, "are for --forward-to HOST:PORT"),
        (["--forward-to", "central.example.org", *token], 2, "write HOST:PORT"),
        ([*far, *token, "--forward-ca", str(text)], 1, f"--forward-ca: {text} cannot be read"),
        ([*far, "--forward-ca", ca, "--forward-token-file", "/nothing"], 1, "/nothing cannot be"),
        (
            [*far, *token, "--forward-ca", ca, "--forward-cert", certificate, "--forward-key",
             other_key],
            1,
            "is not the key of --forward-cert",
        ),
        ([*far, *token, "--forward-ca", ca, "--store", "postgresql://h/d"], 2, "one --store"),
    ):  # fmt: skip
        refused = reprise("serve", "--listen", "127.0.0.1:0", *flags)
        assert refused.code == code, (flags, refused)
        assert said in refused.err
        assert refused.err.count("\n") == 1
