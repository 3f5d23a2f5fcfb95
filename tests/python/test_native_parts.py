"""What `reprise doctor` says about the parts that are compiled at their first use."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from pathlib import Path

import pytest
import torch

from reprise import native_parts
from reprise.base.errors import RepriseError


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> object:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("REPRISE_FAST", raising=False)

    def run(**environment: str) -> dict[str, dict[str, str]]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert native_parts.main() == 0
        return {check["check"]: check for check in json.loads(capsys.readouterr().out)}

    return run


def test_a_part_that_is_not_built_names_its_compiler_and_its_command(said, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)

    found = said(CXX=str(compiler))

    assert found["tape"]["health"] == "ok"
    assert found["tape"]["found"].startswith(f"not built yet: {compiler} builds it at its first")
    assert found["tape"]["advice"].endswith("python -m reprise.torch.compiled.fast build")
    assert found["probe"]["advice"].endswith("python -m reprise.torch.meter.probe build")


def test_a_part_that_is_built_is_named_with_its_file(said, tmp_path: Path) -> None:
    from reprise.torch.compiled.fast import FAST

    folder = FAST.cache_folder()
    assert folder is not None
    assert tmp_path in folder.parents
    built = folder / f"{FAST._fingerprint()}.so"
    built.touch(mode=0o700)

    assert said()["tape"]["found"] == f"built for this torch ({built})"


def test_a_part_that_came_with_the_package_is_used_without_a_compiler_or_a_cache(
    said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reprise.torch.compiled.fast import FAST
    from reprise.torch.internals import native

    monkeypatch.setattr(native, "PREBUILT", tmp_path / "prebuilt")
    (tmp_path / "prebuilt").mkdir()
    (tmp_path / "reprise").touch()  # where the cache would be
    shipped = tmp_path / "prebuilt" / f"{FAST._fingerprint()}.so"
    # No library, or one of another machine, is passed over.
    shipped.touch(mode=0o644)
    assert FAST.found() is None
    shutil.copyfile(torch._C.__file__, shipped)

    assert FAST.found() == shipped
    found = said(CXX="no-such-compiler")
    assert found["tape"]["found"] == f"came with the package for this torch ({shipped})"
    assert found["probe"]["health"] == "warning"
    # One that others could have put there is not loaded, and one of another torch is not found.
    shipped.chmod(0o666)
    assert FAST.found() is None
    shipped.chmod(0o644)
    monkeypatch.setattr("torch.__version__", "2.13.1")
    assert FAST.found() is None


def test_a_part_is_built_into_a_folder_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from reprise.torch.meter.probe import PROBE

    assert PROBE.main(["build", "--into", str(tmp_path)]) == 0
    (built,) = tmp_path.glob("*.so")
    assert capsys.readouterr().out == f"{built}\n"
    assert PROBE.main(["build", "--into"]) == 2


def test_the_usage_of_each_part_names_its_module_and_all_its_arguments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from reprise.torch.compiled.fast import FAST
    from reprise.torch.meter.probe import PROBE

    for part, module in [
        (FAST, "reprise.torch.compiled.fast"),
        (PROBE, "reprise.torch.meter.probe"),
    ]:
        assert part.main(["--help"]) == 2
        said = capsys.readouterr().err
        assert said == f"usage: python -m {module} build [--into FOLDER]\n"
        assert importlib.util.find_spec(module) is not None


def test_a_compiler_that_takes_too_long_is_killed_with_the_processes_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reprise.torch.internals import native
    from reprise.torch.meter.probe import PROBE

    started = tmp_path / "pid"
    compiler = tmp_path / "slow-compiler"
    compiler.write_text(f"#!/bin/sh\nsleep 600 &\necho $! >{started}\nwait\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(native, "COMPILE_TIMEOUT_S", 1)

    with pytest.raises(RepriseError, match="did not finish the memory probe in 1 s"):
        PROBE.build(tmp_path)

    child = Path(f"/proc/{started.read_text().strip()}/stat")
    deadline = time.monotonic() + 60
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the compiler's child lives on"
        time.sleep(0.02)


def test_without_a_compiler_plans_run_in_python_and_a_warning_says_so(said) -> None:
    found = said(CXX="no-such-compiler")

    assert found["release"]["health"] == "ok"
    assert found["tape"]["health"] == found["probe"]["health"] == "warning"
    assert found["tape"]["found"].startswith("replaced by Python (no C++ compiler found")
    assert "peaks on a CPU are lower bounds" in found["probe"]["found"]


def test_a_disabled_tape_is_no_warning(said) -> None:
    found = said(REPRISE_FAST="0")

    assert found["tape"]["health"] == "ok"
    assert found["tape"]["found"].startswith("replaced by Python (REPRISE_FAST=0)")


def test_a_cache_that_cannot_be_written_is_named(said, tmp_path: Path) -> None:
    (tmp_path / "reprise").touch()

    assert "no cache folder can be written" in said()["tape"]["found"]
