"""The version is written once, in the Python package; whatever repeats it agrees."""

from __future__ import annotations

import json
import re
from pathlib import Path

import reprise

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "clients/python/src/reprise/__init__.py"


def test_the_version_is_three_numbers() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", reprise.__version__)
    assert f'__version__ = "{reprise.__version__}"\n' in SOURCE.read_text()


def test_cmake_and_the_package_read_it_there() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    pyproject = (ROOT / "clients/python/pyproject.toml").read_text()

    assert "clients/python/src/reprise/__init__.py" in cmake
    assert "project(reprise VERSION ${version} " in cmake
    assert 'dynamic = ["version"]' in pyproject
    assert 'version = { attr = "reprise.__version__" }' in pyproject


def test_the_front_end_has_the_same_version() -> None:
    package = json.loads((ROOT / "web/package.json").read_text())
    lock = json.loads((ROOT / "web/package-lock.json").read_text())

    assert package["version"] == reprise.__version__
    assert lock["version"] == lock["packages"][""]["version"] == reprise.__version__


def test_the_citation_has_the_same_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()

    assert re.findall(r"^version: (.+)$", citation, re.M) == [reprise.__version__]


def test_the_newest_release_of_the_changelog_is_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)

    assert headings[0].split()[0] == reprise.__version__


def test_pages_and_manifests_name_the_same_version() -> None:
    install = (ROOT / "docs/install.md").read_text()
    manifests = sorted((ROOT / "deploy/kubernetes").rglob("kustomization.yaml"))
    tags = [re.findall(r"newTag: (.+)$", path.read_text(), re.M) for path in manifests]

    assert set(re.findall(r"reprise-([\d.]+)-py3", install)) == {reprise.__version__}
    assert set(re.findall(r"reprise_([\d.]+)_amd64", install)) == {reprise.__version__}
    assert {tag for found in tags for tag in found} == {reprise.__version__}
