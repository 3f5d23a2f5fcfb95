"""The wheel as a user has it: `pip install` into an environment that has only torch.

`scripts/test wheel` builds it, installs it and names both: REPRISE_WHEEL is the file,
REPRISE_PLAIN the environment. Nothing of the checkout is in PATH, PYTHONPATH or the settings.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "clients/python/src/reprise"

# A program that does not know of Reprise.
PROGRAM = """
import torch
torch.manual_seed(0)
layers = [part for _ in range(8) for part in (torch.nn.Linear(128, 128), torch.nn.GELU())]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(1024, 128)).square().mean().backward()
    optimizer.step()
print("trained")
"""


def named(variable: str) -> Path:
    if variable not in os.environ:
        pytest.exit(f"{variable} is not set; run scripts/test wheel", returncode=2)
    return Path(os.environ[variable])


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Installation:
    """The environment, and a home of its own."""

    venv: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.venv / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *command: str | Path, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.venv / "bin" / command[0], *command[1:]],
            cwd=self.home,
            env=self.environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *command: str | Path, **more: str) -> Done:
        process = self.start(*command, **more)
        out, err = process.communicate(timeout=600)
        return Done(process.returncode, out, err)

    def package(self) -> Path:
        (found,) = self.venv.glob("lib/python3*/site-packages/reprise")
        return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    home = tmp_path_factory.mktemp("home")
    (home / "run").mkdir(mode=0o700)
    return Installation(named("REPRISE_PLAIN"), home)


@pytest.fixture(scope="module")
def wheel() -> Path:
    return named("REPRISE_WHEEL")


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    url: str
    token: str

    def get(self, path: str) -> str:
        asked = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            text: str = answer.read().decode()
            return text


@pytest.fixture(scope="module")
def server(installed: Installation) -> Iterator[Server]:
    """`reprise serve` on a free port."""
    process = installed.start("reprise", "serve", "--listen", "127.0.0.1:0")
    said = installed.home / "run/reprise/server.json"
    deadline = time.monotonic() + 60
    while not said.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the server did not say where it is"
        time.sleep(0.05)
    about = json.loads(said.read_text())
    yield Server(process, about["url"], Path(about["token_file"]).read_text().strip())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


# ---- the file ----


def test_the_wheel_is_for_every_python_3_and_at_most_40_megabytes(wheel: Path) -> None:
    assert re.fullmatch(r"reprise-\d+\.\d+\.\d+-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)
    assert wheel.stat().st_size <= 40_000_000


def test_every_source_and_every_licence_is_inside(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    sources = {f"reprise/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*.py")}
    sources |= {f"reprise/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*.cc")}
    sources |= {f"reprise/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*.h")}
    assert sources - set(names) == set()
    licences = {name.split("/licenses/")[1] for name in names if "/licenses/" in name}
    assert licences >= {"LICENSE", "NOTICE", "third_party/README.txt"}


def test_the_notice_names_the_licence_of_every_bundled_library(wheel: Path) -> None:
    # What NOTICE says, in the words that begin the libraries' names.
    known = {
        "absl": "Abseil",
        "address_sorting": "address_sorting",
        "blas": "BLAS",
        "bz2": "bzip2",
        "cares": "c-ares",
        "Clp": "Clp",
        "CoinUtils": "CoinUtils",
        "crypto": "OpenSSL",
        "gfortran": "libgfortran",
        "gpr": "gpr",
        "grpc": "gRPC",
        "lapack": "LAPACK",
        "prometheus-cpp-core": "prometheus-cpp",
        "protobuf": "Protocol Buffers",
        "quadmath": "libquadmath",
        "re2": "RE2",
        "sqlite3": "SQLite",
        "ssl": "OpenSSL",
        "upb": "upb",
    }
    notice = (ROOT / "NOTICE").read_text()
    names = [name for name in zipfile.ZipFile(wheel).namelist() if "reprise.libs/" in name]

    libraries = {Path(name).name.removeprefix("lib") for name in names}
    unknown = {name for name in libraries if not name.startswith(tuple(known))}
    assert libraries
    assert unknown == set()
    assert [word for word in known.values() if word not in notice] == []


# ---- the programs ----


def test_command_and_daemon_are_in_path_with_one_version(
    installed: Installation,
) -> None:
    package = installed("python", "-c", "import reprise; print(reprise.__version__)").out

    assert installed("reprise", "--version").out == f"reprise {package}"
    assert installed("reprised", "--version").out == f"reprised {package}"


def test_the_exit_code_is_the_programs_own(installed: Installation) -> None:
    assert installed("reprise", "no-such-verb").code == 2


def test_importing_the_package_imports_neither_torch_nor_anything_of_others(
    installed: Installation,
) -> None:
    script = (
        "import sys; before = set(sys.modules); import reprise; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    loaded = set(installed("python", "-S", "-c", f"import sys; sys.path.append("
                           f"'{installed.package().parent}'); {script}").out.split())  # fmt: skip

    assert "reprise" in loaded
    assert loaded - {"reprise"} <= set(stdlib(installed))


def stdlib(installed: Installation) -> list[str]:
    return installed("python", "-c", "import sys; print(*sys.stdlib_module_names)").out.split()


def test_a_graph_is_planned_swept_and_verified_without_a_server(
    installed: Installation,
) -> None:
    generate = ROOT / "build/bin/generate"
    subprocess.run(
        [generate, "resnet", "--ops", "200", "--out", installed.home / "g.json"], check=True
    )
    planned = installed("reprise", "plan", "g.json", "--budget", "0.7x", "--out", "p.json")
    verified = installed("reprise", "verify", "g.json", "p.json")

    assert planned.code == 0, planned.err
    assert "It fits in" in planned.out
    assert verified.code == 0, verified.err


def test_the_daemon_maps_libraries_of_the_wheel_and_of_the_platform_alone(
    server: Server,
) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()

    mapped = {match for match in re.findall(r" (/\S+)$", maps, re.M) if ".so" in match}
    outside = {Path(path).name for path in mapped if "/reprise.libs/" not in path}
    assert any("/reprise.libs/libgrpc" in path for path in mapped)
    # What every Linux of the platform tag has.
    platform = (
        "libc.so.",
        "libm.so.",
        "libstdc++.so.",
        "libgcc_s.so.",
        "libz.so.",
        "ld-linux",
    )
    platform += ("libpthread.so.", "libdl.so.", "librt.so.", "libnss_", "libresolv.so.")
    assert {name for name in outside if not name.startswith(platform)} == set()


def test_the_dashboard_is_served_with_all_that_it_loads(server: Server) -> None:
    page = server.get("/")

    assert "<title>Reprise" in page
    parts = re.findall(r'(?:src|href)="(/[^"]+)"', page)
    assert any(part.endswith(".js") for part in parts)
    assert all(server.get(part) for part in parts)


def test_the_server_is_found_by_the_command(installed: Installation, server: Server) -> None:
    status = json.loads(installed("reprise", "status", "--json").out)

    assert status["runs"] == 0


# ---- jobs ----


def verdict_of(done: Done) -> dict[str, Any]:
    lines = done.out.strip().splitlines()
    run: dict[str, Any] = json.loads(lines[-1])
    return run


def test_the_compiled_tape_is_built_from_the_installed_sources(
    installed: Installation,
) -> None:
    before = parts(installed)
    built = installed("python", "-m", "reprise.torch.compiled.fast", "build")
    after = parts(installed)

    assert before["tape"].startswith("not built yet: ")
    assert built.code == 0, built.err
    assert after["tape"].startswith("built for this torch")
    assert parts(installed, REPRISE_FAST="0")["tape"].startswith("replaced by Python")
    assert parts(installed, CXX="no-such-compiler", XDG_CACHE_HOME=str(installed.home / "empty"))[
        "tape"
    ].startswith("replaced by Python")


def parts(installed: Installation, **more: str) -> dict[str, str]:
    """What `reprise doctor` says, by check."""
    done = installed("reprise", "doctor", "--json", **more)
    assert done.code == 0, done
    return {check["check"]: check["found"] for check in json.loads(done.out)["checks"]}


def test_a_program_that_does_not_know_of_reprise_is_planned(
    installed: Installation,
) -> None:
    (installed.home / "train.py").write_text(PROGRAM)

    done = installed("reprise", "run", "--json", "--budget", "0.6x", "--", "python", "train.py")

    assert done.code == 0, done.err
    assert done.out.startswith("trained\n")
    verdict = verdict_of(done)["verdict"]
    assert verdict["feasible"], done.err
    assert verdict["values_equal"], verdict


def test_the_demo_is_validated(installed: Installation) -> None:
    done = installed("python", "-m", "reprise.demo", "--json", "--depth", "2")

    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["validated"]
    assert result["losses_equal"]
    assert result["measured_peak_bytes"] <= result["budget_bytes"]
