"""An installed package has every file that it needs beside Python."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "clients/python"
PACKAGE = CLIENT / "src/reprise"


def packaged() -> set[Path]:
    """What the package data names; a folder without an __init__ is no package of its own."""
    found = re.search(r"^reprise = (\[[^]]*\])", (CLIENT / "pyproject.toml").read_text(), re.M)
    assert found is not None
    patterns = re.findall(r'"([^"]+)"', found.group(1))
    return {path for pattern in patterns for path in PACKAGE.glob(pattern)}


def test_an_installed_package_has_the_sources_that_it_compiles() -> None:
    sources = {path for path in PACKAGE.rglob("*") if path.suffix in {".cc", ".h"}}

    assert sources
    assert sources - packaged() == set()


def test_an_installed_package_has_its_python_that_lies_in_no_package() -> None:
    alone = {path for path in PACKAGE.rglob("*.py") if not (path.parent / "__init__.py").exists()}

    assert alone - packaged() == set()
