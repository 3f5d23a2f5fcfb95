"""Machines of a test: network namespaces on one bridge, with daemons that talk mTLS."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("REPRISE_BUILD", ROOT / "build"))
ADDRESSES = {"centre": "10.77.0.1", "one": "10.77.0.2", "two": "10.77.0.3"}
PORT = 7443


def run(*words: str | Path) -> None:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"


def until(what: str, condition: Callable[[], object], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


@dataclass
class Machine:
    name: str
    namespace: str
    folder: Path
    flags: list[str]
    daemon: subprocess.Popen[str] | None = None

    def command(self, *words: str | Path) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *map(str, words)]

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "REPRISE_SOCKET": str(self.folder / "agent.sock"),
            "REPRISE_AGENT": str(BUILD / "lib/libreprise_agent.so"),
            "REPRISE_DAEMON": str(BUILD / "bin/reprised"),
            "PYTHONPATH": str(ROOT / "clients/python/src"),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            # torchrun starts ranks again on the same store otherwise, where Gloo may find the
            # addresses of the attempt before, and wait for them.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }

    def start(self) -> None:
        log = (self.folder / "daemon.log").open("a")
        self.daemon = subprocess.Popen(
            self.command(
                BUILD / "bin/reprised", "--agent-socket", self.folder / "agent.sock",
                "--data-dir", self.folder / "store", *self.flags,
            ),
            stdout=log, stderr=log, text=True,
        )  # fmt: skip
        where = self.folder / "server.json"
        until(f"the daemon of {self.name} listens", where.exists)

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        assert self.daemon is not None
        # `ip netns exec` becomes the daemon.
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()
        (self.folder / "server.json").unlink()

    def stop(self) -> None:
        if self.daemon is None or self.daemon.poll() is not None:
            return
        self.daemon.terminate()
        assert self.daemon.wait(timeout=60) == 0, (self.folder / "daemon.log").read_text()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "store/reprise.db", timeout=30)) as store:
            return store.execute(sql).fetchall()

    def asks(self, *words: str | Path) -> Any:
        """A command on this machine, with --json."""
        done = subprocess.run(
            self.command(BUILD / "bin/reprise", *words, "--json"),
            env=self.environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode in (0, 3), done.stdout + done.stderr
        return json.loads(done.stdout)


@dataclass
class Network:
    """Three machines: a centre, and two whose daemons forward to it."""

    folder: Path
    machines: dict[str, Machine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prefix = f"rp{os.getpid()}"
        self._certificates()
        (self.folder / "token").write_text("0123456789abcdef0123456789abcdef\n")
        (self.folder / "token").chmod(0o600)
        try:
            self._join()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def _flags(self, name: str) -> list[str]:
        files = [str(self.folder / file) for file in (f"{name}.pem", f"{name}.key", "ca.pem")]
        token = str(self.folder / "token")
        if name == "centre":
            return [
                "--listen", f"0.0.0.0:{PORT}", "--token-file", token, "--tls-cert", files[0],
                "--tls-key", files[1], "--client-ca", files[2],
            ]  # fmt: skip
        return [
            "--listen", "127.0.0.1:0", "--forward-to", f"{ADDRESSES['centre']}:{PORT}",
            "--forward-token-file", token, "--forward-cert", files[0], "--forward-key", files[1],
            "--forward-ca", files[2],
        ]  # fmt: skip

    def _join(self) -> None:
        hub = f"{self.prefix}-centre"
        for name in ADDRESSES:
            namespace = f"{self.prefix}-{name}"
            folder = self.folder / name
            folder.mkdir(mode=0o700)
            run("ip", "netns", "add", namespace)
            self.machines[name] = Machine(name, namespace, folder, self._flags(name))
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "addr", "add", f"{ADDRESSES['centre']}/24", "dev", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        for name in ("one", "two"):
            there = f"{self.prefix}-{name}"
            run(
                "ip", "-n", hub, "link", "add", f"to-{name}", "type", "veth", "peer", "name",
                "eth0", "netns", there,
            )  # fmt: skip
            run("ip", "-n", hub, "link", "set", f"to-{name}", "master", "bridge", "up")
            run("ip", "-n", there, "addr", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
            run("ip", "-n", there, "link", "set", "eth0", "up")

    def _certificates(self) -> None:
        f, key = self.folder, ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        run(
            "openssl", "req", "-x509", *key, "-keyout", f / "ca.key", "-out", f / "ca.pem",
            "-days", "9", "-subj", "/CN=test authority",
        )  # fmt: skip
        for name, address in ADDRESSES.items():
            run(
                "openssl", "req", *key, "-keyout", f / f"{name}.key", "-out", f / f"{name}.csr",
                "-subj", f"/CN={name}",
            )  # fmt: skip
            (f / f"{name}.ext").write_text(f"subjectAltName=IP:{address}\n")
            run(
                "openssl", "x509", "-req", "-in", f / f"{name}.csr", "-CA", f / "ca.pem", "-CAkey",
                f / "ca.key", "-CAcreateserial", "-days", "9", "-extfile", f / f"{name}.ext",
                "-out", f / f"{name}.pem",
            )  # fmt: skip

    def asks_centre(self, *words: str) -> Any:
        """A command on machine one that names the centre."""
        f = self.folder
        return self["one"].asks(
            *words, "--server", f"https://{ADDRESSES['centre']}:{PORT}", "--token-file",
            f / "token", "--ca", f / "ca.pem", "--cert", f / "one.pem", "--key", f / "one.key",
        )  # fmt: skip

    def close(self) -> None:
        for machine in self.machines.values():
            if machine.daemon is not None and machine.daemon.poll() is None:
                machine.daemon.kill()
                machine.daemon.wait()
            # The ranks of a job that did not end: torchrun gives each a session of its own.
            there = ["ip", "netns", "pids", machine.namespace]
            for pid in subprocess.run(there, capture_output=True, text=True).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", machine.namespace], capture_output=True)
