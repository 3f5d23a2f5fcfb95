"""The commands in scripts/: what they hand on, and what they refuse."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A program that says how it was called and ends well.
ECHO = '#!/bin/sh\necho "$(basename "$0") $*"\n'


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Checkout:
    """scripts/test beside a build, an interpreter and a ctest that only say how they are called."""

    folder: Path

    def test(self, *arguments: str) -> Done:
        done = subprocess.run(
            [self.folder / "scripts/test", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}"},
        )
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for path in ("scripts/setup", "scripts/build", ".venv/bin/python", "tools/ctest"):
        program = tmp_path / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(ECHO)
        program.chmod(0o755)
    for name in ("test", "browser", "environment"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    (tmp_path / "tests/python").mkdir(parents=True)
    (tmp_path / "tests/python/test_units.py").touch()
    return Checkout(tmp_path)


def test_what_follows_cpp_is_for_ctest(checkout: Checkout) -> None:
    done = checkout.test("cpp", "-R", "planner", "--verbose")

    assert done.code == 0, done.err
    assert done.out.splitlines()[:2] == ["setup --tests", "build --tests --no-setup"]
    assert done.out.splitlines()[2].startswith("ctest --test-dir build ")
    assert done.out.splitlines()[2].endswith(" -R planner --verbose")


def test_a_browser_that_is_not_there_is_told_before_the_build(checkout: Checkout) -> None:
    (checkout.folder / "scripts/browser").write_text("#!/bin/sh\n")

    done = checkout.test("cpp", "e2e")

    assert done.code == 1
    assert done.out.splitlines() == ["setup --tests"]
    assert "no Chromium for the tests of the pages" in done.err


def test_what_follows_python_is_for_pytest(checkout: Checkout) -> None:
    done = checkout.test("--no-setup", "python", "-k", "python", "-x")

    assert done.out.splitlines()[0] == "build --tests --no-setup"
    assert " -m not long -k python -x tests/structure tests/cli" in done.out.splitlines()[1]


def test_what_takes_long_is_a_part_of_its_own(checkout: Checkout) -> None:
    done = checkout.test("--no-setup", "long", "tests/python/test_units.py")

    assert " -m long tests/python/test_units.py" in done.out.splitlines()[1]


def test_a_path_behind_python_takes_the_place_of_all_tests(checkout: Checkout) -> None:
    done = checkout.test("python", "tests/python/test_units.py", "-k", "bytes", "--no-setup")

    assert done.out.splitlines()[0] == "build --tests --no-setup"
    assert done.out.splitlines()[1].endswith(" tests/python/test_units.py -k bytes")


def test_parts_without_arguments_are_whole_but_for_what_takes_long(checkout: Checkout) -> None:
    done = checkout.test("cpp", "python")

    left_out = done.out.splitlines()[2].partition(" -j 2 -E ")[2]
    assert "AnyInWindows" in left_out
    assert done.out.splitlines()[3].endswith(" tests/structure tests/cli tests/python tests/gpu")


def test_what_follows_public_are_the_clones_and_which_scripts_to_run(checkout: Checkout) -> None:
    for path in ("tests/models", "tests/scripts", "clients/python", ".venv-zoo/bin"):
        (checkout.folder / path).mkdir(parents=True)
        (checkout.folder / path / "requirements.txt").write_text("torch==0\n")
    shutil.copy(checkout.folder / ".venv/bin/python", checkout.folder / ".venv-zoo/bin/python")

    done = checkout.test("cpp", "public", "--sources", "clones", "--case=gpt", "--case", "vae")

    assert done.code == 0, done.err
    run = "python -m tests.scripts.run --out bench/results --sources clones --case=gpt --case vae"
    assert done.out.splitlines()[-1] == run
    # What follows is for the last part alone.
    assert not any("clones" in line for line in done.out.splitlines()[:-1])
    assert "public: --sources DIR" in checkout.test("public").err


def test_a_part_that_is_none_shows_the_usage(checkout: Checkout) -> None:
    done = checkout.test("everything")

    assert done.code == 2
    assert done.err.startswith("usage: scripts/test")


@pytest.mark.parametrize(
    ("file", "labels", "folder"),
    [
        ("planner/search/solve.cc", ("planner",), None),
        ("profiler/ring.cc", ("profiler", "collect"), None),
        ("clients/cli/main.cc", ("cli",), None),
        ("server/collect/collector.cc", ("server", "collect"), None),
        ("tests/server/store_test.cc", ("server",), None),
        ("tests/collect/collector_test.cc", ("collect",), None),
        ("clients/python/src/reprise/torch/tape/tape.py", (), "tests/python/pytorch/tape"),
        ("clients/python/src/reprise/plan/server.py", (), "tests/python/plan"),
        ("clients/python/src/reprise/base/units.py", (), "tests/python/base"),
        ("tests/python/base/test_units.py", (), "tests/python/base/test_units.py"),
        ("docs/api.md", (), None),
    ],
)
def test_an_edit_is_tested_where_its_folder_is_mirrored(
    file: str, labels: tuple[str, ...], folder: str | None
) -> None:
    spec = importlib.util.spec_from_file_location("quick", ROOT / "scripts/quick.py")
    assert spec is not None
    assert spec.loader is not None
    quick: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(quick)

    assert quick.component(file) == labels
    assert quick.python_tests(file) == folder


def test_every_part_that_the_workflow_runs_is_one_of_scripts_test() -> None:
    usage = subprocess.run([ROOT / "scripts/test", "--help"], capture_output=True, text=True).stdout
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    lists = re.findall(r"parts: \[(.*)\]", workflow) + re.findall(
        r"run: scripts/test ([a-z ]+)", workflow
    )
    parts = {word for text in lists for word in re.findall(r"[a-z0-9]+", text)}

    assert parts >= {"lint", "cpp", "python", "sanitize", "wheel"}
    assert [part for part in sorted(parts) if not re.search(rf"\b{part}\b", usage)] == []


def test_what_follows_zoo_is_a_row_to_make_anew(checkout: Checkout) -> None:
    for path in ("tests/models/requirements.txt", "clients/python/requirements.txt"):
        (checkout.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout.folder / path).write_text("torch==1\n")
    program = checkout.folder / ".venv-zoo/bin/python"
    program.parent.mkdir(parents=True)
    shutil.copy(checkout.folder / ".venv/bin/python", program)

    done = checkout.test("zoo", "--case", "style/sam", "--case=style/plain")

    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == (
        "python -m tests.models.run --out bench/results --case style/sam --case=style/plain --keep"
    )


def test_another_release_on_the_fake_gpu_has_a_folder_and_a_table_of_its_own(
    checkout: Checkout,
) -> None:
    setup = checkout.folder / "tests/fakegpu/setup"
    setup.parent.mkdir(parents=True)
    setup.write_text('#!/bin/sh\necho "setup the fake $*"\n')
    setup.chmod(0o755)
    for folder in (".venv-fakegpu", ".venv-fakegpu-2.11.0"):
        (checkout.folder / folder).mkdir()
        python = checkout.folder / ".venv/bin/python"
        (checkout.folder / folder / "env.sh").write_text(f"FAKEGPU_PYTHON={python}\n")

    done = checkout.test("fakegpu", "--torch", "2.11.0", "cpp", "--no-setup")

    # "cpp" is a part of a job's name here, not a part of the tests.
    assert done.out.splitlines()[1:] == [
        "setup the fake --torch 2.11.0",
        "python tests/fakegpu/run.py cpp",
    ]
    whole = checkout.test("fakegpu", "--torch", "2.11.0").out.splitlines()[-1]
    assert whole == "python tests/fakegpu/run.py --out bench/results/fakegpu-2.11.0.md"
    usual = checkout.test("fakegpu").out.splitlines()
    assert usual[-2:] == [
        "setup the fake --torch 2.13.0",
        "python tests/fakegpu/run.py --out bench/results/fakegpu.md",
    ]


def test_a_name_that_no_job_on_the_fake_gpu_has_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tests/fakegpu/run.py", "no such job"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    assert "no such job: a part of none of mlp, gpt, " in done.stderr


def test_what_is_installed_for_fuzzing_configures_it() -> None:
    """The harnesses are configured with the tests, which need GoogleTest."""
    setup = (ROOT / "scripts/setup").read_text()
    fuzz = re.search(r"\[ -n \"\$fuzz\" \] && packages\+=\((.*?)\)", setup, re.DOTALL)

    assert fuzz is not None
    needed = {"clang-14", "libclang-rt-14-dev"}
    for path in ROOT.joinpath("tests").rglob("CMakeLists.txt"):
        if "GTest::" in path.read_text():
            needed |= {"libgtest-dev", "libgmock-dev"}
    assert needed <= set(fuzz[1].split())


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., str]:
    """Runs scripts/build beside a dashboard that is built, and says how cmake was called."""
    for path in ("web/src", "proto", "scripts"):
        (tmp_path / path).mkdir(parents=True)
    for path in ("web/index.html", "web/package-lock.json", "web/dist/index.html"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    for name in ("cmake", "ninja"):
        program = tmp_path / "tools" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\n')
        program.chmod(0o755)
    shutil.copy(ROOT / "scripts/build", tmp_path / "scripts/build")

    def run(*arguments: str) -> str:
        subprocess.run(
            [tmp_path / "scripts/build", "--no-setup", "--programs", *arguments],
            check=True,
            capture_output=True,
            env={**os.environ, "PATH": f"{tmp_path / 'tools'}:{os.environ['PATH']}"},
        )
        calls = (tmp_path / "calls").read_text().splitlines()
        return [line for line in calls if line.startswith("cmake ")][-1]

    return run


def test_a_new_build_folder_compiles_in_batches_and_one_that_is_there_stays(
    build: Callable[..., str], tmp_path: Path
) -> None:
    first = build()
    (tmp_path / "build").mkdir()
    (tmp_path / "build/CMakeCache.txt").touch()
    again = build()

    assert "-DCMAKE_UNITY_BUILD=ON" in first.split()
    assert "CMAKE_UNITY_BUILD" not in again


def test_by_file_ends_batches_in_any_build_folder(
    build: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build/CMakeCache.txt").touch()

    assert "-DCMAKE_UNITY_BUILD=OFF" in build("--by-file").split()


def test_clang_tidy_reads_a_build_folder_without_batches(checkout: Checkout) -> None:
    for name in ("cmake", "ninja", "run-clang-tidy-14"):
        program = checkout.folder / "tools" / name
        program.write_text('#!/bin/sh\necho "$(basename "$0") $*" >&2\n')
        program.chmod(0o755)

    done = checkout.test("--no-setup", "tidy")

    cmake, tidy = (
        next(line.split() for line in done.err.splitlines() if line.startswith(name))
        for name in ("cmake ", "run-clang-tidy-14 ")
    )
    assert "-DCMAKE_UNITY_BUILD=OFF" in cmake
    assert cmake[cmake.index("-B") + 1] == tidy[tidy.index("-p") + 1] != "build"
