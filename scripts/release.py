# SPDX-License-Identifier: Apache-2.0
"""Prepares a release, or checks and tags one.

    scripts/release prepare 0.2.0      # writes the version where it stands; commit the result
    scripts/release check              # would `tag` do it?
    scripts/release tag                # every test, the wheel, then the tag v0.2.0

Nothing is pushed and nothing is published: that is left to a person.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "clients/python/src/reprise/__init__.py"
# What repeats the version, with the text around it; tests/structure/test_version.py compares them.
PLACES = {
    SOURCE: '__version__ = "{}"',
    "CITATION.cff": "version: {}",
    "docs/install.md": "reprise-{}-py3",
    "deploy/kubernetes/base/kustomization.yaml": "newTag: {}",
    "deploy/kubernetes/replicas/kustomization.yaml": "newTag: {}",
    "deploy/kubernetes/sidecar/kustomization.yaml": "newTag: {}",
    "web/package.json": '"version": "{}"',
    "web/package-lock.json": '"name": "reprise-web",\n{0}"version": "{{}}"',
}


class ReleaseError(Exception):
    """One sentence: what is in the way, and what to do."""


def say(text: str) -> None:
    print(f"release: {text}", file=sys.stderr, flush=True)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise ReleaseError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / SOURCE).read_text(), re.M)
    if found is None:
        raise ReleaseError(f"{SOURCE}: has no line __version__ = ...")
    return found.group(1)


def numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise ReleaseError(f"{text}: a version is three numbers, as 0.2.0")
    return tuple(int(part) for part in text.split("."))


def unreleased() -> str:
    """What the changelog says of the next release."""
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(r"^## Unreleased\n(.*?)(?=^## )", text, re.M | re.S)
    if found is None:
        raise ReleaseError("CHANGELOG.md: has no section Unreleased before the newest release")
    return found.group(1).strip()


# ---- prepare ----


def replace(path: str, old: str, new: str, count: int) -> None:
    file = ROOT / path
    text = file.read_text()
    if text.count(old) != count:
        raise ReleaseError(f"{path}: has {text.count(old)} times {old!r}, not {count}")
    file.write_text(text.replace(old, new))


def prepare(new: str) -> None:
    """Writes version `new` into every place, and the changelog's heading."""
    old = version()
    if numbers(new) <= numbers(old):
        raise ReleaseError(f"{new}: is not newer than {old}")
    if not unreleased():
        raise ReleaseError("CHANGELOG.md: nothing is written under Unreleased; say what changed")
    for path, form in PLACES.items():
        if path != "web/package-lock.json":
            count = 2 if "sidecar" in path else 1  # of the daemon and of the job
            replace(path, form.format(old), form.format(new), count)
    # The lock names the package itself twice, at two depths.
    for indent in ("  ", "      "):
        form = PLACES["web/package-lock.json"].format(indent)
        replace("web/package-lock.json", form.format(old), form.format(new), 1)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    replace("CHANGELOG.md", "## Unreleased\n", f"## Unreleased\n\n## {new} ({today})\n", 1)
    say(f"{new} is written; look at git diff, commit, then scripts/release tag")


# ---- check and tag ----


def check() -> str:
    """What must be true of a release before any test runs; returns its tag."""
    now = version()
    numbers(now)
    if git("status", "--porcelain"):
        raise ReleaseError("the work tree has changes: commit or stash them")
    if unreleased():
        raise ReleaseError(
            "CHANGELOG.md: something stands under Unreleased; run scripts/release prepare VERSION"
        )
    heading = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    if heading.split()[0] != now:
        raise ReleaseError(f"CHANGELOG.md: the newest release is {heading}, the version is {now}")
    tag = f"v{now}"
    if git("tag", "--list", tag):
        raise ReleaseError(f"the tag {tag} is there already; the next release needs a new version")
    return tag


def passes(*command: str) -> None:
    say(" ".join(command))
    code = subprocess.run(command, cwd=ROOT).returncode
    if code != 0:
        raise ReleaseError(f"{' '.join(command)} ended with code {code}; no tag was made")


def tag_release() -> None:
    tag = check()
    passes("scripts/test")
    passes("scripts/test", "--no-setup", "docs", "wheel")
    # The tests may take an hour: what is tagged is what they saw.
    check()
    git("tag", "--annotate", tag, "--message", f"Reprise {tag[1:]}")
    say(f"tagged {tag}; the wheel is in dist/. Publish both with git push origin {tag}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("prepare", help="write a new version").add_argument("version")
    verbs.add_parser("check", help="look whether this can be tagged")
    verbs.add_parser("tag", help="run every test, build the wheel, tag")
    options = parser.parse_args(arguments)
    try:
        if options.verb == "prepare":
            prepare(options.version)
        elif options.verb == "check":
            say(f"{check()} can be tagged once scripts/test passes")
        else:
            tag_release()
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
