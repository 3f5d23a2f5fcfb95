"""What `reprise doctor` says about the parts that are compiled at their first use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reprise import native_parts


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
