"""scripts/release: one version everywhere, and no tag on anything unfinished."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import reprise

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "scripts/release.py",
    "clients/python/src/reprise/__init__.py",
    "CITATION.cff",
    "docs/install.md",
    "deploy/kubernetes/base/kustomization.yaml",
    "deploy/kubernetes/replicas/kustomization.yaml",
    "deploy/kubernetes/sidecar/kustomization.yaml",
    "web/package.json",
    "web/package-lock.json",
)
CHANGELOG = f"# Changelog\n\n## {reprise.__version__} (2020-01-02)\n\nThe one before.\n"


class Repository:
    """A repository with what a release touches, and programs instead of its tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        (folder / "CHANGELOG.md").write_text(CHANGELOG)
        (folder / "news").mkdir()
        (folder / "news/README.md").write_text("# The form\n")
        (folder / "news/a-leak.fixed.md").write_text("A [leak](../docs/a.md)\nis gone.\n")
        (folder / "news/a-page.added.md").write_text("A page.\n")
        self.tests("exit 0")
        self.git("init", "-q")
        self.commit()

    def tests(self, script: str) -> None:
        program = self.folder / "scripts/test"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org")
        done = subprocess.run(
            ["git", *who, *arguments], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "A change")

    def release(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "scripts/release.py", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={
                "PATH": "/usr/bin:/bin",
                "GIT_COMMITTER_NAME": "Someone",
                "GIT_COMMITTER_EMAIL": "someone@example.org",
            },
        )
        return done.returncode, done.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_release_is_prepared_in_every_place_then_tagged(repository: Repository) -> None:
    assert repository.release("prepare", "9.8.7")[0] == 0
    repository.commit()
    code, said = repository.release("tag")

    assert code == 0, said
    assert repository.git("tag") == "v9.8.7"
    assert repository.git("cat-file", "-t", "v9.8.7") == "tag"
    lock = json.loads((repository.folder / "web/package-lock.json").read_text())
    assert lock["version"] == lock["packages"][""]["version"] == "9.8.7"
    assert json.loads((repository.folder / "web/package.json").read_text())["version"] == "9.8.7"
    assert "\nversion: 9.8.7\n" in (repository.folder / "CITATION.cff").read_text()
    assert "reprise_9.8.7_amd64.deb" in (repository.folder / "docs/install.md").read_text()
    sidecar = (repository.folder / "deploy/kubernetes/sidecar/kustomization.yaml").read_text()
    assert sidecar.count("newTag: 9.8.7\n") == 2
    changelog = (repository.folder / "CHANGELOG.md").read_text()
    head, newest, before = changelog.split("\n## ")
    assert head == "# Changelog\n"
    assert newest.startswith("9.8.7 (20")
    assert newest.endswith(
        ")\n\n### Added\n\n- A page.\n\n### Fixed\n\n- A [leak](docs/a.md)\n  is gone.\n"
    )
    assert "The one before." in before
    assert [file.name for file in (repository.folder / "news").iterdir()] == ["README.md"]


@pytest.mark.parametrize("version", ["0.0.9", reprise.__version__, "1.0", "v1.0.0"])
def test_a_version_that_is_no_newer_one_is_refused(repository: Repository, version: str) -> None:
    code, said = repository.release("prepare", version)

    assert code == 1
    assert said.startswith(f"release: {version}: ")
    assert repository.git("status", "--porcelain") == ""


def test_a_release_without_news_is_refused(repository: Repository) -> None:
    for file in (repository.folder / "news").glob("a-*"):
        file.unlink()

    assert "news/: has no file" in repository.release("prepare", "9.8.7")[1]


@pytest.mark.parametrize("name", ["a.repaired.md", "a.md", "A leak.fixed.md", "a.fixed.txt"])
def test_news_of_no_kind_is_refused(repository: Repository, name: str) -> None:
    (repository.folder / "news" / name).write_text("A leak.\n")

    said = repository.release("prepare", "9.8.7")[1]

    assert said.startswith(f"release: news/{name}: is not called NAME.KIND.md")
    assert repository.git("status", "--porcelain").count("\n") == 0


def test_news_that_no_release_has_is_not_tagged(repository: Repository) -> None:
    repository.release("prepare", "9.8.7")
    (repository.folder / "news/another.fixed.md").write_text("Another leak.\n")
    repository.commit()

    assert "news/: has files" in repository.release("check")[1]


def test_changes_that_are_not_committed_are_not_tagged(repository: Repository) -> None:
    repository.release("prepare", "9.8.7")

    code, said = repository.release("tag")

    assert code == 1
    assert "the work tree has changes" in said
    assert repository.git("tag") == ""


def test_a_failing_test_leaves_no_tag(repository: Repository) -> None:
    repository.tests("exit 7")
    repository.release("prepare", "9.8.7")
    repository.commit()

    code, said = repository.release("tag")

    assert code == 1
    assert "scripts/test ended with code 7" in said
    assert repository.git("tag") == ""


def test_a_version_is_tagged_once(repository: Repository) -> None:
    repository.release("prepare", "9.8.7")
    repository.commit()
    repository.git("tag", "v9.8.7")

    assert "the tag v9.8.7 is there already" in repository.release("check")[1]


def test_the_news_of_this_repository_are_named_as_a_release_wants_them() -> None:
    files = sorted(file.name for file in (ROOT / "news").iterdir())
    kinds = re.findall(r"^\| `(\w+)` \|", (ROOT / "news/README.md").read_text(), re.M)
    known = "KINDS = (" + ", ".join(f'"{kind}"' for kind in kinds) + ")\n"

    assert known in (ROOT / "scripts/release.py").read_text()
    named = re.compile(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md")
    assert [file for file in files if not named.fullmatch(file) and file != "README.md"] == []
